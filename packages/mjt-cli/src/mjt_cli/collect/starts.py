"""Starting states of a measurement: worlds that differ, moved a little and settled in MuJoCo C."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from mujoco import rollout

POSITION_NOISE = 0.01
VELOCITY_NOISE = 0.01
CONTROL_FRACTION = 0.5
# Steps of C come in lots, at least two, until half of the sampled worlds are in contact, at most six.
LOT, LEAST_LOTS, MOST_LOTS = 50, 2, 6
SAMPLE = 256
# Further worlds repeat those made: settling takes as long as many rounds of a measurement.
DIFFERENT_WORLDS = 4096
FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS


@dataclass(frozen=True)
class Starts:
    """States (nworld, ...) at time zero without warm start, the controls of all steps, contacts in the sample."""

    qpos: np.ndarray
    qvel: np.ndarray
    act: np.ndarray
    ctrl: np.ndarray
    contacts_per_world: float

    @property
    def nworld(self) -> int:
        """Number of worlds."""
        return len(self.qpos)

    def full_states(self) -> np.ndarray:
        """Rows of mjSTATE_FULLPHYSICS, (nworld, 1 + nq + nv + na)."""
        time = np.zeros((self.nworld, 1))
        return np.concatenate([time, self.qpos, self.qvel, self.act], axis=1)


@dataclass(frozen=True)
class Reference:
    """The first worlds in C: velocities after one step, share of converged solves in the last step."""

    qvel: np.ndarray
    converged: float


def make_starts(mjm: mujoco.MjModel, nworld: int, threads: int, seed: int = 0) -> Starts:
    """Positions moved along the tangent space, small velocities, controls of mid range, held while settling."""
    rng = np.random.default_rng(seed)
    worlds = min(nworld, DIFFERENT_WORLDS)
    mjd = mujoco.MjData(mjm)
    states = np.stack([_perturbed(mjm, mjd, rng) for _ in range(worlds)])
    ctrl = _controls(mjm, rng, worlds)
    mjds = [mujoco.MjData(mjm) for _ in range(threads)]
    with rollout.Rollout(nthread=threads) as pool:
        for lot in range(1, MOST_LOTS + 1):
            states = _settled(pool, mjm, mjds, states, ctrl)
            contacts = _contacts(mjm, mjd, states)
            if lot >= LEAST_LOTS and np.mean(contacts > 0) >= 0.5:
                break
    tiled = [np.resize(x, (nworld, x.shape[1])) for x in (*_parts(mjm, states), ctrl)]
    return Starts(*tiled, float(np.mean(contacts)))


def reference(mjm: mujoco.MjModel, starts: Starts, steps: int) -> Reference:
    """Steps the first worlds in C, one by one."""
    mjd = mujoco.MjData(mjm)
    worlds = min(SAMPLE, starts.nworld)
    qvel, converged = np.empty((worlds, mjm.nv)), 0
    states = starts.full_states()
    for world in range(worlds):
        mujoco.mj_resetData(mjm, mjd)
        mujoco.mj_setState(mjm, mjd, states[world], FULL)
        mjd.ctrl[:] = starts.ctrl[world]
        mujoco.mj_step(mjm, mjd)
        qvel[world] = mjd.qvel
        mujoco.mj_step(mjm, mjd, nstep=steps - 1)
        converged += bool(np.max(mjd.solver_niter) < mjm.opt.iterations)
    return Reference(qvel, converged / worlds)


def _perturbed(mjm: mujoco.MjModel, mjd: mujoco.MjData, rng: np.random.Generator) -> np.ndarray:
    mujoco.mj_resetData(mjm, mjd)
    if mjm.nkey:
        mujoco.mj_resetDataKeyframe(mjm, mjd, 0)
    mujoco.mj_integratePos(mjm, mjd.qpos, POSITION_NOISE * rng.standard_normal(mjm.nv), 1.0)
    mujoco.mj_normalizeQuat(mjm, mjd.qpos)
    mjd.qvel[:] = VELOCITY_NOISE * rng.standard_normal(mjm.nv)
    state = np.empty(mujoco.mj_stateSize(mjm, FULL))
    mujoco.mj_getState(mjm, mjd, state, FULL)
    return state


def _controls(mjm: mujoco.MjModel, rng: np.random.Generator, worlds: int) -> np.ndarray:
    limited = np.asarray(mjm.actuator_ctrllimited, dtype=bool)[:, None]
    low, high = np.where(limited, mjm.actuator_ctrlrange, [-1.0, 1.0]).T
    draw = CONTROL_FRACTION * rng.uniform(-1.0, 1.0, (worlds, mjm.nu))
    return (low + high) / 2 + draw * (high - low) / 2


def _settled(
    pool: rollout.Rollout,
    mjm: mujoco.MjModel,
    mjds: Sequence[mujoco.MjData],
    states: np.ndarray,
    ctrl: np.ndarray,
) -> np.ndarray:
    """The states a lot of steps later; those of a few steps at a time are kept, not of all."""
    steps = 10
    control = np.repeat(ctrl[:, None], steps, axis=1) if mjm.nu else None
    for _ in range(LOT // steps):
        states = pool.rollout(mjm, mjds, states, control, nstep=steps)[0][:, -1]
    return states


def _contacts(mjm: mujoco.MjModel, mjd: mujoco.MjData, states: np.ndarray) -> np.ndarray:
    """Contacts of each of the first worlds."""
    counts = []
    for state in states[:SAMPLE]:
        mujoco.mj_setState(mjm, mjd, state, FULL)
        mujoco.mj_fwdPosition(mjm, mjd)
        counts.append(mjd.ncon)
    return np.array(counts)


def _parts(mjm: mujoco.MjModel, states: np.ndarray) -> Sequence[np.ndarray]:
    """Positions, velocities and activations out of rows of mjSTATE_FULLPHYSICS."""
    ends = np.cumsum([1, mjm.nq, mjm.nv, mjm.na])
    return [states[:, start:end] for start, end in itertools.pairwise(ends)]
