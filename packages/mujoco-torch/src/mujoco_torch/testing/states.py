"""States to compare on: different worlds, half of them settled in contact."""

import copy

import mujoco
import numpy as np

from mujoco_torch.testing.fields import INTEGRATION


def copy_state(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> mujoco.MjData:
    """Returns a new MjData with the integration state of `mjd`; everything derived is as after a reset."""
    new = mujoco.MjData(mjm)
    mujoco.mj_copyState(mjm, mjd, new, INTEGRATION)
    return new


def converged(mjm: mujoco.MjModel, tolerance: float = 1e-12, iterations: int = 100) -> mujoco.MjModel:
    """Returns a copy of `mjm` whose solver goes on until it has converged.

    Two Newton solvers that stop early stop at different points when a rounding error decides a step of
    the line search. Physics is compared at the optimum.
    """
    mjm = copy.copy(mjm)
    mjm.opt.tolerance = tolerance
    mjm.opt.iterations = iterations
    mjm.opt.ls_iterations = max(50, mjm.opt.ls_iterations)
    return mjm


def perturbed_states(
    mjm: mujoco.MjModel, nworld: int, seed: int = 0, *, settle: int = 400, scale: float = 1.0
) -> list[mujoco.MjData]:
    """Returns `nworld` different states; derived quantities are not computed.

    Every world starts at a keyframe (world w takes keyframe w modulo their number) or at qpos0, moved by
    a random displacement in the tangent space, with random velocity, time, controls a little beyond their
    range (so that clamping matters), forces on joints and wrenches on all bodies, in proportion to
    inertia, mocap bodies moved, activations within their range or of order one, and one in four equality constraints
    switched. Worlds with an odd index then run `settle` steps of MuJoCo C without the applied forces and
    with a fifth of the controls: they rest or slide in contact, with the warm start of a running
    simulation.

    Args:
      settle: least number of C steps of the odd worlds; twice as many where they do not lead to a contact.
        They are skipped where C reports a bad state on the way.
      scale: multiplies every random displacement, velocity and force.
    """
    rng = np.random.default_rng(seed)
    return [_perturbed_state(mjm, rng, world, settle, scale) for world in range(nworld)]


def _perturbed_state(
    mjm: mujoco.MjModel, rng: np.random.Generator, world: int, settle: int, scale: float
) -> mujoco.MjData:
    mjd = mujoco.MjData(mjm)
    if mjm.nkey:
        mujoco.mj_resetDataKeyframe(mjm, mjd, world % mjm.nkey)
    mujoco.mj_integratePos(mjm, mjd.qpos, scale * 0.2 * rng.standard_normal(mjm.nv), 1.0)
    mujoco.mj_normalizeQuat(mjm, mjd.qpos)
    mjd.qvel = scale * 0.5 * rng.standard_normal(mjm.nv)
    mjd.time = rng.uniform(0.0, 1.0)
    mjd.ctrl = random_ctrl(mjm, rng)
    _perturb_inputs(mjm, mjd, rng, scale)
    if world % 2:
        mjd = _settled(mjm, mjd, settle)
    mjd.qfrc_applied = scale * mjm.dof_M0 * rng.standard_normal(mjm.nv)
    mjd.xfrc_applied = scale * _wrench_sizes(mjm) * rng.standard_normal((mjm.nbody, 6))
    return mjd


def _perturb_inputs(mjm: mujoco.MjModel, mjd: mujoco.MjData, rng: np.random.Generator, scale: float) -> None:
    """Moves what only some models have: mocap bodies, activations, switches of equality constraints."""
    for mocap in range(mjm.nmocap):
        mjd.mocap_pos[mocap] += scale * 0.1 * rng.standard_normal(3)
        turn = scale * 0.2 * rng.standard_normal(3)
        mujoco.mju_quatIntegrate(mjd.mocap_quat[mocap], turn, 1.0)
    for actuator in range(mjm.nactuator):
        own = slice(
            mjm.actuator_actadr[actuator], mjm.actuator_actadr[actuator] + mjm.actuator_actnum[actuator]
        )
        if mjm.actuator_actnum[actuator]:
            low, high = mjm.actuator_actrange[actuator] if mjm.actuator_actlimited[actuator] else (0.0, 1.0)
            mjd.act[own] += scale * rng.uniform(low, high, mjd.act[own].shape)
    if mjm.neq:
        mjd.eq_active ^= rng.uniform(size=mjm.neq) < 0.25


def _wrench_sizes(mjm: mujoco.MjModel) -> np.ndarray:
    """Wrenches that accelerate a free body by one, (nbody, 6); a force on the world too, which moves nothing."""
    sizes = np.concatenate([np.repeat(mjm.body_mass[:, None], 3, axis=1), mjm.body_inertia], axis=1)
    sizes[0] = 1.0
    return sizes


def random_ctrl(mjm: mujoco.MjModel, rng: np.random.Generator) -> np.ndarray:
    """Uniform in 1.2 times the control range, or in [-1.2, 1.2] without one, (nu,)."""
    limited = mjm.actuator_ctrllimited.astype(bool)[:, None]
    low, high = np.where(limited, mjm.actuator_ctrlrange, np.array([[-1.0, 1.0]])).T
    return (low + high) / 2 + 1.2 * (high - low) / 2 * rng.uniform(-1.0, 1.0, mjm.nu)


def _settled(mjm: mujoco.MjModel, start: mujoco.MjData, nstep: int) -> mujoco.MjData:
    """The state after `nstep` C steps and at most as many more until there is a contact.

    Returns `start` where C warned on the way: it resets a bad state.
    """
    mjd = copy_state(mjm, start)
    mjd.ctrl *= 0.2
    for i in range(2 * nstep):
        if i >= nstep and mjd.ncon:
            break
        mujoco.mj_step(mjm, mjd)
    if any(warning.number for warning in mjd.warning):
        return start
    mjd.ctrl = start.ctrl
    return copy_state(mjm, mjd)
