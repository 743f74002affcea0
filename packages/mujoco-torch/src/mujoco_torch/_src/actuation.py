"""Actuator forces and activations (``mj_fwdActuation``, ``mj_nextActivation``)."""

import math

import torch
from torch import Tensor

from mujoco_torch._src import callbacks
from mujoco_torch._src.components import Components
from mujoco_torch._src.history import next_history, read_ctrl
from mujoco_torch._src.motor import motor_drag, motor_dynamics, motor_force, next_bristle
from mujoco_torch._src.muscle import muscle_bias, muscle_dynamics, muscle_gain
from mujoco_torch._src.spatial import (
    norm,
    normalize,
    quat_mul,
    quat_to_rotation_vector,
    rotation_vector_to_quat,
    safe_norm,
)
from mujoco_torch._src.stage import public
from mujoco_torch._src.transmission import moments, wrap_setpoint
from mujoco_torch._src.types import InsideData, InsideModel

MAXVAL = 1e10  # mjMAXVAL: a control beyond it, or NaN, counts as bad


@public(
    reads=(
        "time", "qvel", "ctrl", "act", "history", "actuator_length", "actuator_moment", "actuator_velocity",
        "qfrc_gravcomp",
    ),
    writes=("act_dot", "actuator_force", "qfrc_actuator"),
)  # fmt: skip
def fwd_actuation(m: InsideModel, d: InsideData) -> InsideData:
    """Rates of activations and forces of actuators of every type (``mj_fwdActuation``).

    As in C, a bad control (NaN or huge) zeroes all controls of its world. Callbacks see the controls as they are set.
    Source: MuJoCo documentation, "Computation", section "Actuation model"; "Modeling", section "Actuators".

    Raises:
      StateError: ``ctrl``, ``act`` or the transmission of ``d`` does not fit the model.
    """
    if not (m.nactuator and m.actuation):
        return d.replace(
            act_dot=torch.zeros_like(d.act),
            actuator_force=torch.zeros_like(d.actuator_length),
            qfrc_actuator=torch.zeros_like(d.qvel),
        )
    ctrl = usable_controls(m, d)
    act_dot = _act_dot(m, d, ctrl)
    force = _force(m, d, ctrl, act_dot)
    qfrc_actuator = m.moment_col.T @ (moments(m, d) * (m.moment_row @ force))
    if m.actgravcomp:
        qfrc_actuator = qfrc_actuator + m.dof_actgravcomp * d.qfrc_gravcomp
    qfrc_actuator = torch.clamp(qfrc_actuator, m.dof_actfrcmin, m.dof_actfrcmax)
    return d.replace(act_dot=act_dot, actuator_force=force, qfrc_actuator=qfrc_actuator)


def clamped_controls(m: InsideModel, d: InsideData) -> Tensor:
    """Controls ``[nu, B]``, delayed and clamped."""
    ctrl = read_ctrl(m, d) if m.delayed else d.ctrl
    return torch.clamp(ctrl, m.actuator_ctrlmin, m.actuator_ctrlmax) if m.clampctrl else ctrl


def usable_controls(m: InsideModel, d: InsideData) -> Tensor:
    """Controls ``[nu, B]`` as the actuators take them: delayed, clamped, zero if bad, first inputs slew-limited."""
    ctrl = clamped_controls(m, d)
    ctrl = torch.where((ctrl.abs() <= MAXVAL).all(0), ctrl, 0.0)
    if not m.slew_limited:
        return ctrl
    before = m.slew_act @ d.act
    asked = m.slew_ctrl @ ctrl
    asked = wrap_setpoint(m.slew_period, asked, before) if m.slew_wraps else asked
    limited = torch.clamp(asked, before - m.slew_max, before + m.slew_max)
    return m.slew_kept * ctrl + m.slew_ctrl.T @ limited


def _act_dot(m: InsideModel, d: InsideData, ctrl: Tensor) -> Tensor:
    """Rates of the activations ``[na, B]``."""
    act_dot = torch.zeros_like(d.act)
    if m.linear_dyn:  # integrators and filters
        target = m.dyn_ctrl @ ctrl
        target = wrap_setpoint(m.filter_period, target, d.act) if m.filter_wraps else target
        act_dot = (target - m.dyn_decay * d.act) * m.dyn_rate
    if m.muscle_dyn:
        rate = muscle_dynamics(m.muscle_ctrl @ ctrl, m.muscle_act @ d.act, m.muscle_time)
        act_dot = act_dot + m.muscle_act.T @ rate
    if m.slew_limited:
        act_dot = act_dot + m.slew_act.T @ ((m.slew_ctrl @ ctrl - m.slew_act @ d.act) / m.timestep)
    if m.integral:
        act_dot = act_dot + m.integral_act.T @ _integral_dot(m, d, ctrl)
    if m.dcmotor:
        act_dot = act_dot + motor_dynamics(m, d, ctrl)
    if m.user_dyn:
        act_dot = act_dot + callbacks.act_dyn(m, d)
    return act_dot


def _integral_dot(m: InsideModel, d: InsideData, ctrl: Tensor) -> Tensor:
    """Position error of the controllers that integrate it; one beyond its limit only returns (anti-windup)."""
    setpoint, length = m.integral_ctrl @ ctrl, m.integral_out @ d.actuator_length
    error = (wrap_setpoint(m.integral_period, setpoint, length) if m.integral_wraps else setpoint) - length
    total = m.integral_act @ d.act
    error = torch.where(total >= m.integral_max, error.clamp(max=0.0), error)
    return torch.where(total <= -m.integral_max, error.clamp(min=0.0), error)


def _force(m: InsideModel, d: InsideData, ctrl: Tensor, act_dot: Tensor) -> Tensor:
    """Forces ``[nout, B]``: gain times input plus bias, clamped, then what no limit holds back."""
    gain = (
        m.actuator_gain[0] + m.actuator_gain[1] * d.actuator_length + m.actuator_gain[2] * d.actuator_velocity
    )
    bias = (
        m.actuator_bias[0] + m.actuator_bias[1] * d.actuator_length + m.actuator_bias[2] * d.actuator_velocity
    )
    if m.muscle_gain:
        active = muscle_gain(m.gain_out @ d.actuator_length, m.gain_out @ d.actuator_velocity, m.gain_curve)
        gain = gain + m.gain_out.T @ active
    if m.muscle_bias:
        bias = bias + m.bias_out.T @ muscle_bias(m.bias_out @ d.actuator_length, m.bias_curve)
    if m.user_gain:
        gain = gain + callbacks.act_gain(m, d.replace(act_dot=act_dot))
    if m.user_bias:
        bias = bias + callbacks.act_bias(m, d.replace(act_dot=act_dot))
    following = next_activation(m, d, act_dot) if m.uses_next else None
    force = gain * gain_input(m, d, ctrl, following) + bias
    if m.pid:
        force = force + m.pid_out.T @ _pid(m, d, ctrl, following)
    if m.dcmotor:
        force = force + motor_force(m, d, ctrl, following)
    if m.so3:
        force = force + m.so3_out.T @ _orientation_servo(m, d, ctrl, following).flatten(0, 1)
    if m.tendon_clamp:
        force = _clamp_on_tendons(m, force)
    force = torch.clamp(force, m.actuator_forcemin, m.actuator_forcemax)
    if m.so3_limited:
        force = _clamp_torques(m, force)
    if m.motor_cogging or m.motor_friction:
        force = force + motor_drag(m, d, act_dot)
    return force


def gain_input(m: InsideModel, d: InsideData, ctrl: Tensor, following: Tensor | None) -> Tensor:
    """What the gains multiply ``[nout, B]``: a control, or the last activation of the actuator, now or next."""
    value = ctrl if m.input_is_ctrl else torch.zeros_like(d.actuator_length)
    if m.input_has_ctrl and not m.input_is_ctrl:
        value = value + m.input_ctrl @ ctrl
    if m.input_has_act:
        value = value + m.input_act @ d.act
    if m.input_has_next:
        value = value + m.input_next @ following
    return wrap_setpoint(m.actuator_period, value, d.actuator_length) if m.wraps else value


def _pid(m: InsideModel, d: InsideData, ctrl: Tensor, following: Tensor | None) -> Tensor:
    """Forces of the PID controllers but for their bias, which has the terms of length and velocity."""
    kp, kv, ki = m.pid_gain
    setpoint = m.pid_pos @ ctrl
    if m.pid_wraps:
        setpoint = wrap_setpoint(m.pid_period, setpoint, m.pid_length @ d.actuator_length)
    force = kp * setpoint + kv * (m.pid_vel @ ctrl) + m.pid_ff @ ctrl
    if m.pid_act:
        force = force + ki * (m.pid_integral @ d.act)
    if m.pid_next:
        force = force + ki * (m.pid_integral_next @ following)
    return force


def _orientation_servo(m: InsideModel, d: InsideData, ctrl: Tensor, following: Tensor | None) -> Tensor:
    """Gain times the rotation vector ``[3, n, B]`` to the desired orientation, in the present frame."""
    target = torch.zeros_like(m.so3_out @ d.actuator_length)
    if m.so3_ctrl:
        target = target + m.so3_of_ctrl @ ctrl
    if m.so3_act:
        target = target + m.so3_of_act @ d.act
    if m.so3_next:
        target = target + m.so3_of_next @ following
    count = m.so3_gain.shape[0]
    desired = rotation_vector_to_quat(target.unflatten(0, (3, count)))
    if m.so3_quat:  # that of a servo which is told a rotation vector is the identity, and the other way round
        desired = quat_mul(normalize((m.so3_of_quat @ ctrl).unflatten(0, (4, count)))[0], desired)
    w, x, y, z = rotation_vector_to_quat((m.so3_out @ d.actuator_length).unflatten(0, (3, count)))
    error = quat_to_rotation_vector(quat_mul(Components((w, -x, -y, -z)), desired))
    return (m.so3_gain * error).stack()


def _clamp_torques(m: InsideModel, force: Tensor) -> Tensor:
    """Torques of orientation servos shortened to their limit."""
    torque = (m.so3_out @ force).unflatten(0, (3, m.so3_gain.shape[0]))
    size = norm(torque)
    over = size > m.so3_max
    factor = torch.where(over, m.so3_max / torch.where(over, size, 1.0), 1.0)
    return force + m.so3_out.T @ ((factor - 1.0) * torque).flatten(0, 1)


def _clamp_on_tendons(m: InsideModel, force: Tensor) -> Tensor:
    """Forces on each tendon scaled so that their sum is in its range."""
    total = m.tendon_of_out.T @ force
    safe = torch.where(total == 0, 1.0, total)
    low, high = (total < m.tendon_frcmin) & (total != 0), (total > m.tendon_frcmax) & (total != 0)
    factor = torch.where(low, m.tendon_frcmin / safe, torch.where(high, m.tendon_frcmax / safe, 1.0))
    return force + force * (m.tendon_of_out @ (factor - 1.0))


def next_activation(m: InsideModel, d: InsideData, act_dot: Tensor) -> Tensor:
    """Activations ``[na, B]`` after a time step (``mj_nextActivation``).

    Exact filters, currents and bristles follow the exact solution over the step, all others Euler's rule. The rate of a
    disabled actuator counts as zero; its range, and the exact solution of a bristle, still hold.
    Source: MuJoCo documentation, "Computation", section "Stateful actuators".
    """
    act = d.act + act_dot * m.act_step
    if m.motor_friction:
        act = act + m.motor_z.T @ (next_bristle(m, d) - m.motor_z @ act)
    return torch.clamp(act, m.act_min, m.act_max) if m.act_limited else act


def advance_actuation(m: InsideModel, d: InsideData) -> InsideData:
    """Activations and buffers of controls after a time step, by ``act_dot`` (part of ``mj_advance``)."""
    if m.has_history:
        d = d.replace(history=next_history(m, d))
    if not (m.na and m.actuation):
        return d
    act = next_activation(m, d, d.act_dot)
    if m.act_wraps:
        act = wrap_setpoint(m.act_period, act, m.act_out @ d.actuator_length)
    return d.replace(act=_anchored(m, act) if m.so3_stateful else act)


def _anchored(m: InsideModel, act: Tensor) -> Tensor:
    """Rotation vectors that orientation servos integrate, the shorter way round."""
    turn = (m.so3_acts @ act).unflatten(0, (3, m.so3_gain.shape[0]))
    angle, nonzero = safe_norm(turn)
    far = angle > math.pi
    turns = torch.floor(angle / (2.0 * math.pi) + 0.5)
    change = torch.where(far & nonzero, -2.0 * math.pi * turns / torch.where(nonzero, angle, 1.0), 0.0)
    return act + m.so3_acts.T @ (change * turn).flatten(0, 1)
