"""Long runs beside C, and how far two runs of C that start alike part."""

import dataclasses
from collections.abc import Callable, Sequence

import mujoco
import numpy as np
import torch

import mujoco_torch as mjt
from mujoco_torch.testing.states import copy_state, random_ctrl


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Distance from C's trajectory, step by step.

    Attributes:
      ours: distance of our state from C's after each step, (nstep, nworld).
      shadow: the same of the worst C simulation whose state was perturbed after each step, (nstep, nworld).
      perturbation: relative size of that perturbation.
    """

    ours: np.ndarray
    shadow: np.ndarray
    perturbation: float

    def horizon(self, amplification: float = 1e4) -> int:
        """Steps until chaos, when a world's shadow is more than `amplification` perturbations away."""
        far = (self.shadow > amplification * self.perturbation).any(axis=1)
        return int(np.argmax(far)) if far.any() else len(self.shadow)

    def ratio(self, nstep: int | None = None) -> float:
        """Our largest distance within `nstep` steps, relative to the shadow's largest up to the same step."""
        reached = np.maximum.accumulate(np.maximum(self.shadow, self.perturbation), axis=0)
        return float((self.ours / reached)[:nstep].max(initial=0.0))


def rollout_parity(
    mjm: mujoco.MjModel,
    states: Sequence[mujoco.MjData],
    nstep: int,
    *,
    perturbation: float = 1e-12,
    nshadow: int = 2,
    seed: int = 0,
    step: Callable[[mjt.Model, mjt.Data], mjt.Data] | None = None,
    device: torch.device | str | None = None,
) -> Rollout:
    """Simulates all states with C, with perturbed C, and with ours, float64, the same random controls.

    Contact dynamics is chaotic: two right simulations that differ in the last bit part sooner or later.
    The shadows say when: they are C simulations whose positions and velocities receive a relative random
    error of `perturbation` after *every* step, since our rounding differs from C's in every step too (an
    error of the first step alone would die out in a robot that comes to rest). Applied forces of the
    states are kept, controls are redrawn every ten steps.

    Args:
      step: replaces `mujoco_torch.step`, e.g. with its compiled form.
    """
    rng = np.random.default_rng(seed)
    controls = np.stack([[random_ctrl(mjm, rng) for _ in states] for _ in range(-(-nstep // 10))])
    trajectories = [_c_trajectory(mjm, state, controls[:, w], nstep) for w, state in enumerate(states)]
    shadow = np.zeros((nstep, len(states)))
    for world, (state, trajectory) in enumerate(zip(states, trajectories, strict=True)):
        for _ in range(nshadow):
            other = _c_trajectory(mjm, state, controls[:, world], nstep, perturbation, rng)
            shadow[:, world] = np.maximum(shadow[:, world], _distance(mjm, trajectory, other))
    our_trajectories = _our_trajectories(mjm, states, controls, nstep, step or mjt.step, device)
    ours = np.stack(
        [_distance(mjm, c, o) for c, o in zip(trajectories, our_trajectories, strict=True)], axis=1
    )
    return Rollout(ours, shadow, perturbation)


Trajectory = tuple[np.ndarray, np.ndarray]


def _c_trajectory(
    mjm: mujoco.MjModel,
    state: mujoco.MjData,
    controls: np.ndarray,
    nstep: int,
    perturbation: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Trajectory:
    """Positions (nstep, nq) and velocities (nstep, nv) after each C step."""
    mjd = copy_state(mjm, state)
    qpos, qvel = np.empty((nstep, mjm.nq)), np.empty((nstep, mjm.nv))
    for i in range(nstep):
        mjd.ctrl = controls[i // 10]
        mujoco.mj_step(mjm, mjd)
        if rng is not None:
            mujoco.mj_integratePos(mjm, mjd.qpos, perturbation * rng.uniform(-1.0, 1.0, mjm.nv), 1.0)
            mjd.qvel += perturbation * rng.uniform(-1.0, 1.0, mjm.nv) * (1.0 + np.abs(mjd.qvel))
        qpos[i], qvel[i] = mjd.qpos, mjd.qvel
    return qpos, qvel


def _our_trajectories(
    mjm: mujoco.MjModel,
    states: Sequence[mujoco.MjData],
    controls: np.ndarray,
    nstep: int,
    step: Callable[[mjt.Model, mjt.Data], mjt.Data],
    device: torch.device | str | None,
) -> list[Trajectory]:
    m = mjt.put_model(mjm, device=device, dtype=torch.float64)
    d = mjt.put_data(m, [copy_state(mjm, state) for state in states])
    qpos, qvel = [], []
    with torch.no_grad():
        for i in range(nstep):
            if i % 10 == 0:
                d = d.replace(ctrl=torch.as_tensor(controls[i // 10], device=d.ctrl.device))
            d = step(m, d)
            qpos.append(d.qpos.cpu().numpy())
            qvel.append(d.qvel.cpu().numpy())
    return list(zip(np.stack(qpos, axis=1), np.stack(qvel, axis=1), strict=True))


def _distance(mjm: mujoco.MjModel, reference: Trajectory, other: Trajectory) -> np.ndarray:
    """Largest difference of position (tangent space) and of velocity, relative to 1 + their size, (nstep,)."""
    difference = np.zeros(mjm.nv)
    distance = np.empty(len(reference[0]))
    for i, (qpos, qvel, other_qpos, other_qvel) in enumerate(zip(*reference, *other, strict=True)):
        mujoco.mj_differentiatePos(mjm, difference, 1.0, qpos, other_qpos)
        place = np.abs(difference) / (1.0 + np.abs(qpos).max(initial=0.0))
        speed = np.abs(qvel - other_qvel) / (1.0 + np.abs(qvel).max(initial=0.0))
        distance[i] = max(place.max(initial=0.0), speed.max(initial=0.0))
    return np.where(np.isfinite(distance), distance, np.inf)
