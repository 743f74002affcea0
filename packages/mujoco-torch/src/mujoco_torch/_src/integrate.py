"""Integrators and the step (``mj_Euler``, ``mj_RungeKutta``, ``mj_step``)."""

from torch import Tensor

from mujoco_torch._src import spatial
from mujoco_torch._src.enums import IntegratorType
from mujoco_torch._src.forward import INPUTS, forward
from mujoco_torch._src.inertia import factor_m, solve_m
from mujoco_torch._src.kinematics import joint_quats
from mujoco_torch._src.stage import ALL, public
from mujoco_torch._src.types import InsideData, InsideModel

ADVANCED = ("time", "qpos", "qvel", "act", "qacc_warmstart")


def integrate_pos(m: InsideModel, qpos: Tensor, qvel: Tensor, dt: Tensor) -> Tensor:
    """``qpos`` after moving with ``qvel`` for ``dt`` [s]; quaternions by the exponential map (``mj_integratePos``)."""
    moved = qpos + dt * (m.qpos_dof @ qvel)
    if not m.nquat:
        return moved
    turn = (m.quat_dof @ qvel).unflatten(0, (3, m.nquat))
    quat = spatial.integrate_quat(joint_quats(m, qpos), turn, dt)
    return m.qpos_keep * moved + m.quat_qpos.T @ quat.stack().flatten(0, 1)


def _advance(m: InsideModel, d: InsideData, qacc: Tensor, qvel: Tensor | None = None) -> InsideData:
    """Velocity by ``qacc``, position by ``qvel`` or else the new velocity, time by one step (``mj_advance``).

    The acceleration of the last solve becomes the start of the next.
    """
    new_qvel = d.qvel + m.timestep * qacc
    new_qpos = integrate_pos(m, d.qpos, new_qvel if qvel is None else qvel, m.timestep)
    return d.replace(time=d.time + m.timestep, qpos=new_qpos, qvel=new_qvel, qacc_warmstart=d.qacc)


@public(
    reads=("time", "qpos", "qvel", "act", "qacc", "M", "qfrc_smooth", "qfrc_constraint"),
    writes=ADVANCED,
)
def euler(m: InsideModel, d: InsideData) -> InsideData:
    """Semi-implicit Euler step; joint damping is implicit unless ``eulerdamp`` is disabled (``mj_Euler``).

    Source: MuJoCo documentation, "Computation", section "Numerical integration".

    Raises:
      StateError: the dynamics of ``d`` do not fit the model.
    """
    if not m.eulerdamp:
        return _advance(m, d, d.qacc)
    damped = factor_m.inside(m, d.replace(M=d.M + m.system.M_diagonal @ (m.timestep * m.dof_damping)))
    return _advance(m, d, solve_m(m, damped, d.qfrc_smooth + d.qfrc_constraint))


RK4_STAGES = (0.5, 0.5, 1.0)  # the fraction of the step after which stages 2 to 4 are evaluated


@public(reads=(*INPUTS, "qacc"), writes=ALL)
def rungekutta4(m: InsideModel, d: InsideData) -> InsideData:
    """Fourth-order Runge-Kutta step after ``forward`` (``mj_RungeKutta``).

    Orientations follow the Runge-Kutta-Munthe-Kaas scheme, so that they, too, are of fourth order.
    Source: Munthe-Kaas, "High order Runge-Kutta methods on manifolds", Applied Numerical Mathematics 29 (1999).

    Raises:
      StateError: the dynamics of ``d`` do not fit the model.
    """
    start = d
    h = m.timestep
    velocity, acceleration = d.qvel, d.qacc
    qvel_sum, qacc_sum = velocity, acceleration
    for fraction, weight in zip(RK4_STAGES, (2.0, 2.0, 1.0), strict=True):
        step = fraction * h
        moved = step * velocity
        d = d.replace(
            time=start.time + step,
            qpos=integrate_pos(m, start.qpos, velocity, step),
            qvel=start.qvel + step * acceleration,
        )
        d = forward.inside(m, d)
        velocity, acceleration = _pull_back(m, moved, d.qvel), d.qacc
        qvel_sum, qacc_sum = qvel_sum + weight * velocity, qacc_sum + weight * acceleration
    d = d.replace(time=start.time, qpos=start.qpos, qvel=start.qvel)
    qacc = qacc_sum / 6.0
    # As in C: qacc is that of the whole step, the next solve starts from that of the last stage.
    return _advance(m, d, qacc, qvel_sum / 6.0).replace(qacc=qacc)


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


@public(reads=INPUTS, writes=ALL)
def step(m: InsideModel, d: InsideData) -> InsideData:
    """Advance every world by one time step (``mj_step``).

    Functional: returns a new Data, ``d`` is unchanged. One graph under ``torch.compile(step, fullgraph=True)``.

    Args:
      m: the model.
      d: the state, one world or a batch; only the state fields (time to xfrc_applied) are read.

    Departures from C:
      1. A world with a NaN keeps it instead of being reset; other worlds are not touched.

    Raises:
      StateError: the state does not fit the model in batch size, shape, dtype or device.
    """
    d = forward.inside(m, d)
    if m.integrator == IntegratorType.RK4:
        return rungekutta4.inside(m, d)
    return euler.inside(m, d)
