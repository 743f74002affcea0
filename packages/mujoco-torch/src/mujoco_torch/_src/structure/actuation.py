"""Structure and arrays of the actuators: gains, biases, activations, controllers and clamps.

Three kinds of index are kept apart, as in C: an actuator has controls (``nu`` of all) and force outputs (``nout``).
Each kind of actuator has a list of its own, and a pattern that puts what it computes at its outputs or activations;
a model without the kind has neither. A disabled actuator keeps its activation but has no place at the outputs.
"""

from typing import Any

import mujoco
import numpy as np

from mujoco_torch._src.enums import BiasType, CtrlChart, CtrlInput, DynType, GainType, TrnType
from mujoco_torch._src.structure.arrays import MINVAL, Part, items, select
from mujoco_torch._src.structure.history import histories
from mujoco_torch._src.structure.transmission import setpoint_periods

POS, VEL, FF, VOLTAGE = CtrlInput.POS, CtrlInput.VEL, CtrlInput.FF, CtrlInput.VOLTAGE

_MAX_DISABLEABLE_GROUP = 30
_FILTERS = (DynType.FILTER, DynType.FILTEREXACT)
_SETPOINTS = (DynType.INTEGRATOR, *_FILTERS)  # whose activation is a set point, where a control would be
# Gains that multiply one control or activation.
_SCALING_GAINS = (GainType.FIXED, GainType.AFFINE, GainType.MUSCLE, GainType.USER)


def actuators(mjm: mujoco.MjModel) -> Part:
    """Everything between control and joint force but the transmission."""
    static, arrays = {}, {}
    for part in (
        _affine,
        _inputs,
        _muscles,
        _users,
        _activations,
        _controllers,
        _motors,
        _orientations,
        _limits,
        histories,
    ):
        values, more = part(mjm)
        static |= values
        arrays |= more
    static["uses_next"] = any(static[x] for x in ("input_has_next", "pid_next", "motor_electric", "so3_next"))
    return static, arrays


def disabled_actuators(mjm: mujoco.MjModel) -> np.ndarray:
    """Whether each actuator is in a disabled group; as in C, only groups 0 to 30 can be disabled."""
    groups = mjm.actuator_group
    can = (groups >= 0) & (groups <= _MAX_DISABLEABLE_GROUP)
    return can & (mjm.opt.disableactuator >> np.where(can, groups, 0) & 1 != 0)


def _owner(mjm: mujoco.MjModel) -> np.ndarray:
    """The actuator of each output."""
    return np.repeat(np.arange(mjm.nactuator), mjm.actuator_outnum)


def _which(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(mask).tolist()


def _outputs(mjm: mujoco.MjModel, actuators: list[int]) -> list[int]:
    """The output of each actuator of a list, -1 if it is disabled."""
    off = disabled_actuators(mjm)
    return [-1 if off[i] else int(mjm.actuator_outadr[i]) for i in actuators]


def _affine(mjm: mujoco.MjModel) -> Part:
    """Gain and bias of each output as affine functions of its length and velocity."""
    own = _owner(mjm)
    gaintype, biastype = mjm.actuator_gaintype[own], mjm.actuator_biastype[own]
    affine = gaintype == GainType.AFFINE
    gain = mjm.actuator_gainprm[own, :3] * np.stack(
        [(gaintype == GainType.FIXED) | affine, affine, affine], 1
    )
    # The bias of an orientation servo has no term of the length: its error takes care of that.
    so3 = biastype == BiasType.SO3
    affine = biastype == BiasType.AFFINE
    bias = mjm.actuator_biasprm[own, :3] * np.stack([so3 | affine, affine, so3 | affine], 1)
    off = disabled_actuators(mjm)[own]
    gain[off] = bias[off] = 0.0
    return {}, dict(
        actuator_gain=items(gain.reshape(mjm.nout, 3)), actuator_bias=items(bias.reshape(mjm.nout, 3))
    )


def _inputs(mjm: mujoco.MjModel) -> Part:
    """What the gain of each output multiplies: a control, the last activation, or the next one."""
    own = _owner(mjm)
    ctrl, act, early = [], [], []
    for i in own:
        stateful = mjm.actuator_actnum[i] > 0
        has_input = mjm.actuator_gaintype[i] in _SCALING_GAINS
        last = mjm.actuator_actadr[i] + mjm.actuator_actnum[i] - 1
        ctrl.append(mjm.actuator_ctrladr[i] if has_input and not stateful else -1)
        act.append(last if has_input and stateful and not mjm.actuator_actearly[i] else -1)
        early.append(last if has_input and stateful and mjm.actuator_actearly[i] else -1)
    static = dict(
        input_is_ctrl=ctrl == list(range(mjm.nu)),
        input_has_ctrl=max(ctrl, default=-1) >= 0,
        input_has_act=max(act, default=-1) >= 0,
        input_has_next=max(early, default=-1) >= 0,
    )
    period = setpoint_periods(mjm)
    period[~np.isin(mjm.actuator_gaintype, _SCALING_GAINS)] = 0.0
    static["wraps"] = bool(period.any())
    arrays: dict[str, Any] = dict(actuator_period=items(period[own])) if static["wraps"] else {}
    if not static["input_is_ctrl"]:
        arrays |= dict(
            input_ctrl=select(ctrl, mjm.nu), input_act=select(act, mjm.na), input_next=select(early, mjm.na)
        )
    return static, arrays


def _muscles(mjm: mujoco.MjModel) -> Part:
    """Muscles: dynamics of the activation; curves of the active and of the passive force."""
    on = ~disabled_actuators(mjm)
    dyn = _which(mjm.actuator_dyntype == DynType.MUSCLE)
    gain = _which((mjm.actuator_gaintype == GainType.MUSCLE) & on)
    bias = _which((mjm.actuator_biastype == BiasType.MUSCLE) & on)
    static = dict(muscle_dyn=bool(dyn), muscle_gain=bool(gain), muscle_bias=bool(bias))
    arrays = {}
    if dyn:
        arrays |= dict(
            muscle_ctrl=select(mjm.actuator_ctrladr[dyn], mjm.nu),
            muscle_act=select(mjm.actuator_actadr[dyn] + mjm.actuator_actnum[dyn] - 1, mjm.na),
            muscle_time=items(mjm.actuator_dynprm[dyn, :3]),
        )
    if gain:
        arrays |= dict(
            gain_out=select(mjm.actuator_outadr[gain], mjm.nout),
            gain_curve=_muscle_curve(mjm, gain, mjm.actuator_gainprm[gain]),
        )
    if bias:
        arrays |= dict(
            bias_out=select(mjm.actuator_outadr[bias], mjm.nout),
            bias_curve=_muscle_curve(mjm, bias, mjm.actuator_biasprm[bias]),
        )
    return static, arrays


def _muscle_curve(mjm: mujoco.MjModel, actuators: list[int], prm: np.ndarray) -> np.ndarray:
    """Per muscle: offset and scale of the normalised length, scale of the normalised velocity, peak force, lmin, lmax,
    fpmax, fvmax, ``[8, n, 1]``."""
    out = mjm.actuator_outadr[actuators]
    low, high = mjm.actuator_lengthrange[out].T
    range0, range1, force, scale, lmin, lmax, vmax, fpmax, fvmax = prm[:, :9].T
    optimum = (high - low) / np.maximum(MINVAL, range1 - range0)
    per_length = 1.0 / np.maximum(MINVAL, optimum)
    peak = np.where(force < 0, scale / np.maximum(MINVAL, mjm.actuator_acc0[out]), force)
    per_velocity = 1.0 / np.maximum(MINVAL, optimum * vmax)
    return items(
        np.stack([range0 - low * per_length, per_length, per_velocity, peak, lmin, lmax, fpmax, fvmax], 1)
    )


def _users(mjm: mujoco.MjModel) -> Part:
    """Actuators with user dynamics, gains and biases: which they are, and where their values go."""
    on, own = ~disabled_actuators(mjm), _owner(mjm)
    dyn = (mjm.actuator_dyntype == DynType.USER) & (mjm.actuator_actnum > 0)
    gain = (mjm.actuator_gaintype == GainType.USER) & on
    bias = (mjm.actuator_biastype == BiasType.USER) & on
    static = dict(user_dyn=bool(dyn.any()), user_gain=bool(gain.any()), user_bias=bool(bias.any()))
    arrays: dict[str, Any] = {}
    if static["user_dyn"]:
        last = np.where(dyn, mjm.actuator_actadr + mjm.actuator_actnum - 1, -1)
        arrays |= dict(user_dyn_mask=items(dyn), user_dyn_act=select(last, mjm.na).T)
    for name, mask in (("gain", gain), ("bias", bias)):
        if static[f"user_{name}"]:
            out = select(np.where(mask[own], own, -1), mjm.nactuator)
            arrays |= {f"user_{name}_mask": items(mask), f"user_{name}_out": out}
    return static, arrays


def _activations(mjm: mujoco.MjModel) -> Part:
    """Activations: linear dynamics, the factor of the rate in a time step, and ranges."""
    na, h = mjm.na, mjm.opt.timestep
    own = np.zeros(na, int)
    for i in range(mjm.nactuator):
        own[max(mjm.actuator_actadr[i], 0) :][: mjm.actuator_actnum[i]] = i
    if not na:
        return dict(linear_dyn=False, act_limited=False, filter_wraps=False, act_wraps=False), {}
    kind = mjm.actuator_dyntype[own]
    filters = np.isin(kind, _FILTERS)
    linear = filters | (kind == DynType.INTEGRATOR)
    # An integrator has a control for each activation, a filter one of each.
    ctrl = mjm.actuator_ctrladr[own] + np.where(filters, 0, np.arange(na) - mjm.actuator_actadr[own])
    time = np.maximum(MINVAL, mjm.actuator_dynprm[own, 0])
    current = np.zeros(na, bool)
    low, high = np.full(na, -np.inf), np.full(na, np.inf)
    for i in _which(mjm.actuator_dyntype == DynType.DCMOTOR):
        slots = motor_slots(mjm, i)
        if "current" in slots:
            current[slots["current"]] = True
        if "integral" in slots and mjm.actuator_dynprm[i, 8] > 0:
            low[slots["integral"]], high[slots["integral"]] = (
                -mjm.actuator_dynprm[i, 8],
                mjm.actuator_dynprm[i, 8],
            )
    limited = mjm.actuator_actlimited[own].astype(bool) & (kind != DynType.DCMOTOR)
    low, high = np.where(limited[:, None], mjm.actuator_actrange[own], np.stack([low, high], 1)).T
    exact = current | (kind == DynType.FILTEREXACT)
    step = np.where(exact, time * -np.expm1(-h / time), h)
    static = dict(linear_dyn=bool(linear.any()), act_limited=bool(np.isfinite([low, high]).any()))
    period = setpoint_periods(mjm)[own] * np.isin(kind, _SETPOINTS)
    static |= dict(act_wraps=bool(period.any()), filter_wraps=bool(period[filters].any()))
    arrays = dict(
        act_period=items(period),
        act_out=select(mjm.actuator_outadr[own], mjm.nout),
        filter_period=items(period * filters),
        dyn_ctrl=select(np.where(linear, ctrl, -1), mjm.nu),
        dyn_decay=items(filters),
        dyn_rate=items(np.where(filters, 1.0 / time, linear)),
        act_step=items(np.where(disabled_actuators(mjm)[own], 0.0, step)),
        act_min=items(low),
        act_max=items(high),
    )
    return static, arrays


def motor_slots(mjm: mujoco.MjModel, i: int) -> dict[str, int]:
    """Activations of a PID controller or DC motor by name: those that its parameters switch on, in C's order."""
    dyn, gain = mjm.actuator_dynprm[i], mjm.actuator_gainprm[i]
    if mjm.actuator_gaintype[i] == GainType.PID:
        slew = mjm.actuator_actnum[i] > 0 and dyn[1] > 0
        has = dict(slew=slew, integral=mjm.actuator_actnum[i] > slew)
    else:
        has = dict(
            slew=dyn[7] > 0,
            integral=gain[5] > 0,
            temperature=dyn[2] > 0,
            bristle=dyn[5] > 0,
            current=dyn[0] > 0,
        )
    names = [name for name, on in has.items() if on]
    return {name: int(mjm.actuator_actadr[i]) + k for k, name in enumerate(names)}


def _ctrl_of(mjm: mujoco.MjModel, i: int, bit: int) -> int:
    """The control of a PID controller or DC motor that is one of its inputs, -1 if it has no such input."""
    spec = int(mjm.actuator_ctrlspec[i])
    return int(mjm.actuator_ctrladr[i]) + (spec & bit - 1).bit_count() if spec & bit else -1


def _controllers(mjm: mujoco.MjModel) -> Part:
    """What PID controllers and DC motors share, slew limits and integrals; the gains of PID controllers."""
    gaintype = mjm.actuator_gaintype
    both = _which(np.isin(gaintype, (GainType.PID, GainType.DCMOTOR)))
    slots = {i: motor_slots(mjm, i) for i in both}
    slew = [i for i in both if "slew" in slots[i]]
    integral = [i for i in both if "integral" in slots[i]]
    pid = _which(gaintype == GainType.PID)
    period = setpoint_periods(mjm) * (gaintype == GainType.PID)
    static = dict(
        slew_limited=bool(slew),
        slew_wraps=bool(period[slew].any()),
        integral=bool(integral),
        integral_wraps=bool(period[integral].any()),
        pid=bool(pid),
        pid_wraps=bool(period.any()),
        pid_act=False,
        pid_next=False,
    )
    arrays = {}
    if slew:
        place = np.where(gaintype[slew] == GainType.PID, 1, 7)
        first = mjm.actuator_ctrladr[slew]
        kept = np.ones(mjm.nu)
        kept[first] = 0.0
        arrays |= dict(
            slew_ctrl=select(first, mjm.nu),
            slew_act=select([slots[i]["slew"] for i in slew], mjm.na),
            slew_max=items(mjm.actuator_dynprm[slew, place] * mjm.opt.timestep),
            slew_kept=items(kept),
            slew_period=items(period[slew]),
        )
    if integral:
        windup = mjm.actuator_dynprm[integral, np.where(gaintype[integral] == GainType.PID, 0, 8)]
        arrays |= dict(
            integral_ctrl=select([_ctrl_of(mjm, i, POS) for i in integral], mjm.nu),
            integral_out=select(mjm.actuator_outadr[integral], mjm.nout),
            integral_act=select([slots[i]["integral"] for i in integral], mjm.na),
            integral_max=items(np.where(windup > 0, windup, np.inf)),
            integral_period=items(period[integral]),
        )
    if pid:
        early = mjm.actuator_actearly[pid].astype(bool)
        act = np.array([slots[i].get("integral", -1) for i in pid])
        static |= dict(pid_act=bool((act[~early] >= 0).any()), pid_next=bool((act[early] >= 0).any()))
        arrays |= dict(
            pid_pos=select([_ctrl_of(mjm, i, POS) for i in pid], mjm.nu),
            pid_vel=select([_ctrl_of(mjm, i, VEL) for i in pid], mjm.nu),
            pid_ff=select([_ctrl_of(mjm, i, FF) for i in pid], mjm.nu),
            pid_integral=select(np.where(early, -1, act), mjm.na),
            pid_integral_next=select(np.where(early, act, -1), mjm.na),
            pid_out=select(_outputs(mjm, pid), mjm.nout),
            pid_length=select(mjm.actuator_outadr[pid], mjm.nout),
            pid_period=items(period[pid]),
            pid_gain=items(
                np.stack(
                    [
                        -mjm.actuator_biasprm[pid, 1],
                        -mjm.actuator_biasprm[pid, 2],
                        mjm.actuator_gainprm[pid, 0],
                    ],
                    1,
                )
            ),
        )
    return static, arrays


def _motors(mjm: mujoco.MjModel) -> Part:
    """DC motors: parameters of the winding, its temperature, the controller, cogging and friction."""
    motors = _which(mjm.actuator_gaintype == GainType.DCMOTOR)
    slots = [motor_slots(mjm, i) for i in motors]
    gain, dyn, bias = (x[motors] for x in (mjm.actuator_gainprm, mjm.actuator_dynprm, mjm.actuator_biasprm))
    controlled = mjm.actuator_ctrlspec[motors] & int(POS | VEL | FF) != 0

    def has(name: str) -> bool:
        return any(name in slot for slot in slots)

    static = dict(
        dcmotor=bool(motors),
        motor_stateful=any(slots),
        motor_controlled=bool(controlled.any()),
        motor_voltage=any(_ctrl_of(mjm, i, VOLTAGE) >= 0 for i in motors),
        motor_integral=has("integral"),
        motor_thermal=has("temperature"),
        motor_friction=has("bristle"),
        motor_electric=has("current"),
        motor_cogging=bool((bias[:, 0] != 0).any()),
    )
    if not motors:
        return static, {}

    def slot(name: str):
        return select([s.get(name, -1) for s in slots], mjm.na)

    def ctrl(bit: int):
        return select([_ctrl_of(mjm, i, bit) for i in motors], mjm.nu)

    resistance, constant = gain[:, 0], gain[:, 1]
    volts = np.where(controlled, resistance / np.where(controlled, constant, 1.0), 0.0)
    time = dyn[:, 0]
    thermal, friction = dyn[:, 2:3] > 0, dyn[:, 5:6] > 0
    arrays = dict(
        motor_out=select(mjm.actuator_outadr[motors], mjm.nout),
        motor_force=select(_outputs(mjm, motors), mjm.nout),
        motor_pos=ctrl(POS),
        motor_vel=ctrl(VEL),
        motor_ff=ctrl(FF),
        motor_volt=ctrl(VOLTAGE),
        motor_winding=items(gain[:, :2]),
        motor_gain=items(gain[:, 4:7]),
        motor_drive=items(np.stack([volts, np.where(controlled, constant, 0.0)], 1)),
        motor_maxvolt=items(np.where(gain[:, 7] > 0, gain[:, 7], np.inf)),
        motor_x=slot("integral"),
        motor_temp=slot("temperature"),
        motor_z=slot("bristle"),
        motor_current=slot("current"),
        # temperature coefficient, ambient over reference temperature, thermal resistance, capacity
        motor_heat=items(
            np.where(
                thermal, np.stack([gain[:, 2], dyn[:, 4] - gain[:, 3], dyn[:, 2], dyn[:, 3]], 1), [0, 0, 1, 1]
            )
        ),
        motor_is_electric=items(time > 0),
        motor_timeconst=items(np.where(time > 0, np.maximum(MINVAL, time), 1.0)),
        motor_maxrate=items(np.where(dyn[:, 1] > 0, dyn[:, 1], np.inf)),
        motor_cog=items(bias[:, :3]),
        # stiffness and damping of the bristle, Coulomb friction, static friction, Stribeck velocity
        motor_bristle=items(
            np.where(
                friction,
                np.stack([dyn[:, 5], dyn[:, 6], bias[:, 3], bias[:, 4], np.maximum(MINVAL, bias[:, 5])], 1),
                [0, 0, 1, 1, 1],
            )
        ),
    )
    return static, arrays


def _orientations(mjm: mujoco.MjModel) -> Part:
    """Orientation servos: the target as a rotation vector or a quaternion, the current orientation, the gain."""
    servos = _which(mjm.actuator_gaintype == GainType.SO3)
    quat = mjm.actuator_ctrlspec[servos] == CtrlChart.QUAT
    stateful = mjm.actuator_actnum[servos] > 0
    early = mjm.actuator_actearly[servos].astype(bool)
    static = dict(
        so3=bool(servos),
        so3_ctrl=bool((~quat & ~stateful).any()),
        so3_act=bool((stateful & ~early).any()),
        so3_next=bool((stateful & early).any()),
        so3_quat=bool(quat.any()),
        so3_limited=bool(mjm.actuator_forcelimited[servos].any()),
        so3_stateful=bool(stateful.any()),
    )
    if not servos:
        return static, {}

    def parts(first, mask, count: int, n: int):
        ids = [first[i] + k if on else -1 for k in range(count) for i, on in zip(servos, mask, strict=True)]
        return select(ids, n)

    ctrl, act = mjm.actuator_ctrladr, mjm.actuator_actadr
    on = ~disabled_actuators(mjm)[servos]
    limited = mjm.actuator_forcelimited[servos].astype(bool)
    arrays = dict(
        so3_of_ctrl=parts(ctrl, ~quat & ~stateful, 3, mjm.nu),
        so3_of_quat=parts(ctrl, quat, 4, mjm.nu),
        so3_of_act=parts(act, stateful & ~early, 3, mjm.na),
        so3_of_next=parts(act, stateful & early, 3, mjm.na),
        so3_acts=parts(act, stateful, 3, mjm.na),
        so3_out=parts(mjm.actuator_outadr, np.ones(len(servos), bool), 3, mjm.nout),
        so3_gain=items(np.where(on, mjm.actuator_gainprm[servos, 0], 0.0)),
        so3_max=items(np.where(limited, mjm.actuator_forcerange[servos, 1], np.inf)),
    )
    return static, arrays


def _limits(mjm: mujoco.MjModel) -> Part:
    """Clamps of controls, of forces, and of the sum of forces on a tendon."""
    own = _owner(mjm)
    ctrllimited = mjm.actuator_ctrllimited.astype(bool)
    frclimited = mjm.actuator_forcelimited.astype(bool) & (mjm.actuator_gaintype != GainType.SO3)
    force = np.where(frclimited[own, None], mjm.actuator_forcerange[own], [-np.inf, np.inf])
    on_tendon = mjm.actuator_trntype == TrnType.TENDON
    tendon = np.where(on_tendon, mjm.actuator_trnid[:, 0], -1)
    on = on_tendon & ~disabled_actuators(mjm)
    clamped = sorted({t for t in tendon[on].tolist() if mjm.tendon_actfrclimited[t]})
    static = dict(
        tendon_clamp=bool(clamped),
        actgravcomp=bool(mjm.flg_gravcomp) and bool(mjm.jnt_actgravcomp.any()),
    )
    arrays: dict[str, Any] = dict(
        actuator_ctrlmin=items(np.where(ctrllimited, mjm.actuator_ctrlrange[:, 0], -np.inf)),
        actuator_ctrlmax=items(np.where(ctrllimited, mjm.actuator_ctrlrange[:, 1], np.inf)),
        actuator_forcemin=items(force[:, 0]),
        actuator_forcemax=items(force[:, 1]),
    )
    if clamped:
        arrays |= dict(
            tendon_of_out=select(
                [clamped.index(t) if t in clamped else -1 for t in tendon[own]], len(clamped)
            ),
            tendon_frcmin=items(mjm.tendon_actfrcrange[clamped, 0]),
            tendon_frcmax=items(mjm.tendon_actfrcrange[clamped, 1]),
        )
    if static["actgravcomp"]:
        arrays["dof_actgravcomp"] = items(mjm.jnt_actgravcomp[mjm.dof_jntid])
    return static, arrays
