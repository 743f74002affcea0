"""Integrators, the step and the rollout (``mj_Euler``, ``mj_implicit``, ``mj_RungeKutta``, ``mj_step``)."""

import math
from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from mujoco_torch._src import callbacks, spatial
from mujoco_torch._src.actuation import advance_actuation
from mujoco_torch._src.constraint import make_constraints
from mujoco_torch._src.derivative import solve_implicit, solve_implicitfast
from mujoco_torch._src.energy import energies
from mujoco_torch._src.enums import IntegratorType
from mujoco_torch._src.errors import ArgumentError, StateError
from mujoco_torch._src.forward import (
    INPUTS,
    POSITION,
    VELOCITY,
    forward,
    fwd_position,
    fwd_rest,
    fwd_velocity,
)
from mujoco_torch._src.inertia import factor_m, solve_m
from mujoco_torch._src.inverse import compare_fwd_inv
from mujoco_torch._src.kinematics import joint_quats
from mujoco_torch._src.layout import FIELDS, STATE, names
from mujoco_torch._src.passive import damping_rate, yielded
from mujoco_torch._src.reset import check_acc, check_state, note_bad, replace_bad
from mujoco_torch._src.stage import ALL, public
from mujoco_torch._src.tendon import yielded_tendons
from mujoco_torch._src.topology import Topology
from mujoco_torch._src.types import Data, InsideData, InsideModel, Model, read_field, replace_fields, shape_of

ADVANCED = ("time", "qpos", "qvel", "act", "history", "plastic", "qacc_warmstart")
# What the advance of activations and of buffers of controls reads beside the state.
ACTUATION = ("act_dot", "actuator_length", "actuator_velocity")
# What tendon springs that yield read beside the state.
YIELDING = ("ten_J", "ten_length")


def integrate_pos(m: InsideModel, qpos: Tensor, qvel: Tensor, dt: Tensor) -> Tensor:
    """``qpos`` after moving with ``qvel`` for ``dt`` [s]; quaternions by the exponential map (``mj_integratePos``)."""
    rates = m.qpos_rate @ qvel  # of the elements of qpos, then the turns of the quaternions
    moved = qpos + dt * rates[: m.nq]
    if not m.nquat:
        return moved
    turn = rates[m.nq :].unflatten(0, (3, m.nquat))
    quat = spatial.integrate_quat(joint_quats(m, qpos), turn, dt)
    return m.qpos_keep * moved + m.quat_qpos.T @ quat.stack().flatten(0, 1)


def _advance(m: InsideModel, d: InsideData, qacc: Tensor, qvel: Tensor | None = None) -> InsideData:
    """Velocity by ``qacc``, position by ``qvel`` or else the new velocity, time by one step (``mj_advance``).

    Springs of joints yield to the new position. Those of tendons yield, as in C, to the length that a tendon of
    constant Jacobian would have there. The acceleration of the last solve becomes the start of the next.
    """
    d = advance_actuation(m, d)
    new_qvel = d.qvel + m.timestep * qacc
    velocity = new_qvel if qvel is None else qvel
    new_qpos = integrate_pos(m, d.qpos, velocity, m.timestep)
    if m.joints_yield:
        d = d.replace(plastic=yielded(m, new_qpos, d.plastic))
    if m.tendon_yields:
        length = d.ten_length + m.timestep * (d.ten_J * velocity).sum(1)
        d = d.replace(plastic=yielded_tendons(m, length, d.plastic))
    return d.replace(time=d.time + m.timestep, qpos=new_qpos, qvel=new_qvel, qacc_warmstart=d.qacc)


@public(
    reads=(
        "time", "qpos", "qvel", "act", "history", "plastic", "ctrl", "qacc", "M", "qfrc_smooth", "qfrc_constraint",
        *ACTUATION, *YIELDING,
    ),
    writes=ADVANCED,
)  # fmt: skip
def euler(m: InsideModel, d: InsideData) -> InsideData:
    """Semi-implicit Euler step; joint damping is implicit unless ``eulerdamp`` is disabled (``mj_Euler``).

    Source: MuJoCo documentation, "Computation", section "Numerical integration".

    Raises:
      StateError: the dynamics of ``d`` do not fit the model.
    """
    if not m.eulerdamp:
        return _advance(m, d, d.qacc)
    damped = factor_m.inside(
        m, d.replace(M=d.M + m.system.M_diagonal @ (m.timestep * damping_rate(m, d.qvel)))
    )
    return _advance(m, d, solve_m(m, damped, d.qfrc_smooth + d.qfrc_constraint))


@public(
    reads=names(
        "time qpos qvel act history plastic ctrl qacc act_dot xipos ximat geom_xpos geom_xmat subtree_com cdof cinert "
        "ten_J ten_length actuator_length actuator_moment crb M ten_velocity actuator_velocity cvel cdof_dot "
        "actuator_force qfrc_actuator qfrc_smooth qfrc_constraint"
    ),
    writes=ADVANCED,
)
def implicit(m: InsideModel, d: InsideData) -> InsideData:
    """Step of the integrators ``implicit`` and ``implicitfast``, implicit in velocity (``mj_implicit``).

    Velocity moves by h (M - h D)^-1 qfrc, with D the derivative of all forces but those of constraints by velocity.
    ``implicitfast`` leaves Coriolis and centrifugal forces out of it, except for free bodies that carry no joint.
    Source: MuJoCo documentation, "Computation", section "Numerical integration".

    Departures from C:
      1. D and the factor of M - h D (``qDeriv``, ``qLU``, ``qH``) are no fields of Data.

    Raises:
      StateError: the dynamics of ``d`` do not fit the model.
      ArgumentError: the integrator of the model is another one.
    """
    if m.integrator not in (IntegratorType.IMPLICIT, IntegratorType.IMPLICITFAST):
        name = IntegratorType(m.integrator).name.lower()
        raise ArgumentError(f"the integrator of the model is {name}; implicit needs implicit or implicitfast")
    if not m.nv:
        return _advance(m, d, d.qacc)
    solve = solve_implicit if m.integrator == IntegratorType.IMPLICIT else solve_implicitfast
    return _advance(m, d, solve(m, d, d.qfrc_smooth + d.qfrc_constraint))


# The fraction of the step after which stages 2 to 4 are evaluated, and what the slopes of stages 1 to 3 count.
RK4_FRACTIONS = (0.5, 0.5, 1.0)
RK4_WEIGHTS = (1.0, 2.0, 2.0)


@public(reads=(*INPUTS, "qacc", *ACTUATION, *YIELDING), writes=ALL)
def rungekutta4(m: InsideModel, d: InsideData) -> InsideData:
    """Fourth-order Runge-Kutta step after ``forward`` (``mj_RungeKutta``).

    Orientations follow the Runge-Kutta-Munthe-Kaas scheme, so that they, too, are of fourth order.
    Source: Munthe-Kaas, "High order Runge-Kutta methods on manifolds", Applied Numerical Mathematics 29 (1999).

    Raises:
      StateError: the dynamics of ``d`` do not fit the model.
    """
    d = rk4_begin(m, d)
    for weight, fraction in zip(RK4_WEIGHTS, RK4_FRACTIONS, strict=True):
        d = rk4_stage(m, d.replace(rk_weight=weight, rk_fraction=fraction))
        d = forward.inside(m, d)
    return rk4_end(m, d)


# What a step carries from stage to stage beside the fields of Data: the state it started from, the displacement from
# there to the present stage, and the slopes so far.
RK4_CARRIED = ("rk_time", "rk_qpos", "rk_qvel", "rk_moved", "rk_qvel_sum", "rk_qacc_sum")
RK4_CARRIED_ACT = ("rk_act", "rk_act_sum")  # of a model with activations
RK4_CARRIED_MOTOR = ("rk_motor_velocity",)  # of a model with DC motors that have some
RK4_CARRIED_TENDON = ("rk_ten_J", "rk_ten_length")  # of a model with tendons, and springs that yield


def rk4_begin(m: InsideModel, d: InsideData) -> InsideData:
    """Start of a step: nothing moved, no slopes."""
    none = torch.zeros_like(d.qvel)
    if m.na:
        d = d.replace(rk_act=d.act, rk_act_sum=torch.zeros_like(d.act))
    if m.motor_stateful:
        d = d.replace(rk_motor_velocity=d.actuator_velocity)
    if m.tendons_of_start:
        d = d.replace(rk_ten_J=d.ten_J, rk_ten_length=d.ten_length)
    return d.replace(
        rk_time=d.time, rk_qpos=d.qpos, rk_qvel=d.qvel, rk_moved=none, rk_qvel_sum=none, rk_qacc_sum=none
    )


def rk4_stage(m: InsideModel, d: InsideData) -> InsideData:
    """Count the slopes of the present stage with ``rk_weight``, and move along them by ``rk_fraction`` of the step."""
    d, velocity = _count_slopes(m, d, d.rk_weight)
    step = d.rk_fraction * m.timestep
    if m.na:  # neither ranges nor exact integrals in between, as in C
        d = d.replace(act=d.rk_act + step * d.act_dot)
    return d.replace(
        time=d.rk_time + step,
        qpos=integrate_pos(m, d.rk_qpos, velocity, step),
        qvel=d.rk_qvel + step * d.qacc,
        rk_moved=step * velocity,
    )


def rk4_end(m: InsideModel, d: InsideData) -> InsideData:
    """The whole step along the mean of the slopes.

    As in C, ``qacc`` is that of the whole step, and the next solve starts from that of the last stage. Lengths and
    Jacobians of tendons are again those of the start in a model with springs that yield.
    """
    d, _ = _count_slopes(m, d, 1.0)
    qacc = d.rk_qacc_sum / 6.0
    d = d.replace(time=d.rk_time, qpos=d.rk_qpos, qvel=d.rk_qvel)
    if m.tendons_of_start:
        d = d.replace(ten_J=d.rk_ten_J, ten_length=d.rk_ten_length)
    if not m.na:
        return _advance(m, d, qacc, d.rk_qvel_sum / 6.0).replace(qacc=qacc)
    act_dot = d.act_dot
    d = d.replace(act=d.rk_act, act_dot=d.rk_act_sum / 6.0)
    if m.motor_stateful:  # as in C, bristles slide with the velocity at the start of the step
        d = d.replace(actuator_velocity=d.rk_motor_velocity)
    return _advance(m, d, qacc, d.rk_qvel_sum / 6.0).replace(qacc=qacc, act_dot=act_dot)


def _count_slopes(m: InsideModel, d: InsideData, weight) -> tuple[InsideData, Tensor]:
    velocity = _pull_back(m, d.rk_moved, d.qvel)
    if m.na:
        d = d.replace(rk_act_sum=d.rk_act_sum + weight * d.act_dot)
    d = d.replace(rk_qvel_sum=d.rk_qvel_sum + weight * velocity, rk_qacc_sum=d.rk_qacc_sum + weight * d.qacc)
    return d, velocity


def _pull_back(m: InsideModel, moved: Tensor, qvel: Tensor) -> Tensor:
    """Velocity at the end of a displacement, as a rate of that displacement: the inverse of dexp for rotations."""
    if not m.nquat:
        return qvel
    turned = (m.quat_dof @ moved).unflatten(0, (3, m.nquat))
    # C reads the rotation off the two orientations, so it is the shorter way round.
    turned = spatial.quat_to_rotation_vector(spatial.rotation_vector_to_quat(turned))
    spin = (m.quat_dof @ qvel).unflatten(0, (3, m.nquat))
    correction = spatial.rotation_vector_rate(turned, spin) - spin
    return qvel + m.quat_dof.T @ correction.stack().flatten(0, 1)


COMPARED = ("qfrc_inverse", "solver_fwdinv")  # of the first stage of a Runge-Kutta step


def changed(m: Model) -> tuple[str, ...]:
    """The state fields that a step may change in a world that it does not reset."""
    return (*ADVANCED, *callbacks.CONTROLLED) if m.mjcb_control else ADVANCED


def forward_compared(m: InsideModel, d: InsideData) -> InsideData:
    """Forward dynamics, compared with inverse dynamics where the model asks for it."""
    return compare_fwd_inv(m, forward.inside(m, d))


@public(reads=INPUTS, writes=ALL)
def _step(m: InsideModel, d: InsideData) -> InsideData:
    d = check_acc(m, forward_compared(m, check_state(m, d)))
    if m.integrator == IntegratorType.RK4:
        compared = {name: getattr(d, name) for name in COMPARED}
        return replace_bad(m, rungekutta4.inside(m, d).replace(**compared))
    return replace_bad(m, _single_step(m, d))


def unchecked_step(m: InsideModel, d: InsideData) -> InsideData:
    """A step of another integrator than RK4 that resets no world, but notes whether one is bad."""
    return note_bad(m, _single_step(m, check_acc(m, forward_compared(m, d))), d.qpos, d.qvel)


def _single_step(m: InsideModel, d: InsideData) -> InsideData:
    """The advance of the state from one evaluation of the dynamics."""
    if m.integrator in (IntegratorType.IMPLICIT, IntegratorType.IMPLICITFAST):
        return implicit.inside(m, d)
    return euler.inside(m, d)


@public(reads=INPUTS, writes=(*INPUTS, *POSITION, *VELOCITY, "energy"))
def step1(m: InsideModel, d: InsideData) -> InsideData:
    """First half of a step: all that depends on position and velocity, then the control callback (``mj_step1``).

    A controller may use the result to set ``ctrl`` and applied forces before ``step2``.

    Raises:
      StateError: the state does not fit the model.
    """
    d = fwd_position.inside(m, check_state(m, d))
    d = energies(m, fwd_velocity.inside(m, d))
    return callbacks.control(m, d)


@public(
    reads=(*INPUTS, *POSITION, *VELOCITY, "energy"),
    writes=(
        *INPUTS,
        *names("act_dot actuator_force qfrc_actuator qfrc_smooth qacc_smooth qacc qfrc_constraint"),
        *names("efc_force solver_niter"),
        *COMPARED,
    ),
)
def step2(m: InsideModel, d: InsideData) -> InsideData:
    """Second half of a step: forces, acceleration, and the advance of the state (``mj_step2``).

    As in C, RK4 has no second half: a model with that integrator takes a step of Euler's.

    Raises:
      StateError: ``d`` is not what ``step1`` gives for the model.
    """
    d = check_acc(m, fwd_rest(m, d.replace(constraints=make_constraints(m, d))))
    d = _single_step(m, compare_fwd_inv(m, d))
    return replace_bad(m, d, "stepped2" if m.integrator == IntegratorType.RK4 else "stepped")


def step(m: Model, d: Data, nsteps: int = 1) -> Data:
    """Advance every world by ``nsteps`` time steps (``mj_step``).

    Functional: returns a new Data, ``d`` is unchanged. One graph under ``torch.compile(step, fullgraph=True)``, where
    several steps are several times the graph; ``mujoco_torch.compile(step)`` compiles once, whatever their number.

    Args:
      m: the model.
      d: the state, one world or a batch; only the state fields (time to xfrc_applied) are read.
      nsteps: the number of steps, at least 1, with the same controls and applied forces.

    A world whose position, velocity or acceleration becomes bad (NaN, or beyond 1e10) is reset, as C does it, and
    ``d.warning`` counts it; other worlds keep every bit. The disable flag ``autoreset`` switches that off.

    Departures from C:
      1. The counts of warnings go on through resets; C clears those of a world that it resets.
      2. Where the acceleration is bad, C resets and computes again. The state that this ends in is known with the
         model (and its callbacks, as they were then) and put in place; the derived fields stay those of the bad state.
      3. With ``autoreset`` disabled nothing is looked at, and nothing counted.

    Raises:
      StateError: the state does not fit the model in batch size, shape, dtype or device.
      ArgumentError: ``nsteps`` is not a positive number.
    """
    check_nsteps(nsteps)
    for _ in range(nsteps):
        d = _step(m, d)
    return d


step.inside = _step.inside


def check_nsteps(nsteps: int) -> None:
    """Raise ArgumentError unless it is a number of steps."""
    if not isinstance(nsteps, int) or nsteps < 1:
        raise ArgumentError(f"nsteps is {nsteps!r}; it must be a positive integer")


def rollout(
    m: Model,
    d: Data,
    controls: Tensor,
    keep: Sequence[str] = ("qpos", "qvel"),
    *,
    step: Callable[[Model, Data], Data] = step,
) -> tuple[Data, TensorDict]:
    """Step through controls, and keep fields of every step (``mujoco.rollout``).

    Args:
      m: the model.
      d: the state to start from, one world or a batch.
      controls: ``ctrl`` of each step, ``(nworld, nstep, nu)``, or ``(nstep, nu)`` for one world.
      keep: names of the fields of Data to keep, after each step.
      step: what makes a step, for instance ``torch.compile(step)``.

    Returns:
      the state at the end, and the kept fields, ``(nworld, nstep, ...)`` each. Other derived fields of the state are
      not computed and hold NaN (integers: -1).

    Raises:
      StateError: the state or the controls do not fit the model.
      ArgumentError: there is no such field.
    """
    check_controls(m, d, controls)
    check_keep(keep)
    steps = []
    for ctrl in controls.unbind(-2):
        d = step(m, d.replace(ctrl=ctrl))
        steps.append([read_field(d, name) for name in keep])
    at = len(d.batch_size)
    kept = {name: torch.stack(x, at) for name, x in zip(keep, zip(*steps, strict=True), strict=True)}
    return without(m, d, keep), TensorDict(kept, batch_size=(*d.batch_size, len(steps)))


def check_controls(m: Model, d: Data, controls: Tensor) -> None:
    """Raise StateError unless the controls fit the model and the state."""
    if (
        controls.dim() != len(d.batch_size) + 2
        or controls.shape[-1] != m.nu
        or controls.shape[:-2] != d.batch_size
    ):
        raise StateError(
            f"controls have shape {tuple(controls.shape)}, the model and the state need "
            f"{(*d.batch_size, 'nstep', m.nu)}"
        )
    if controls.shape[-2] < 1:
        raise StateError("controls have no step; give at least one")
    if controls.dtype != m.dtype or controls.device != m.device:
        raise StateError(
            f"controls are {controls.dtype} on {controls.device}, the model is {m.dtype} on {m.device}"
        )


def check_keep(keep: Sequence[str]) -> None:
    """Raise ArgumentError unless all are names of fields."""
    unknown = [name for name in keep if name not in FIELDS]
    if isinstance(keep, str) or unknown:
        raise ArgumentError(
            f"keep is {keep!r}; it must list fields of Data: {', '.join(FIELDS)} (contact_* for those of d.contact)"
        )


def without(m: Model, d: Data, keep: Sequence[str]) -> Data:
    """The state with derived fields marked as not computed, except those kept."""
    gone = [name for name in FIELDS if name not in STATE and name not in keep]
    return replace_fields(
        d, {name: not_computed(m.topology, m.dtype, name, d.batch_size).to(m.device) for name in gone}
    )


def not_computed(topology: Topology, dtype: torch.dtype, name: str, batch_size: torch.Size) -> Tensor:
    """What a field holds that was not asked for: NaN, or -1, without memory of its own for each world."""
    field = FIELDS[name]
    mark = torch.tensor(-1, dtype=torch.int32) if field.integer else torch.tensor(math.nan, dtype=dtype)
    return mark.expand((*batch_size, *shape_of(topology, field)))
