"""MuJoCo C: `rollout` on threads, or `step`, one world after the other on one thread."""

from __future__ import annotations

import time

import mujoco
import numpy as np
from mujoco import rollout

import scenes
from engines.base import Task

MODES = ("rollout", "step")
VERSIONS = {"mujoco": mujoco.__version__}


def make(task: Task) -> Rollout | Step:
    """Prepare the engine for the task's mode."""
    return Rollout(task) if task.mode == "rollout" else Step(task)


class Step:
    """Every world in turn, all its steps at once, in one `MjData`."""

    threads = 1

    def __init__(self, task: Task):
        self.task = task
        self.mjd = mujoco.MjData(task.mjm)

    def one_step(self) -> np.ndarray:
        """Velocities after one step; this engine is the reference of the others."""
        return scenes.reference_step(self.task.mjm, self.task.start)

    def run(self) -> tuple[int, np.ndarray]:
        """All steps of as many worlds as fit the time."""
        mjm = self.task.mjm
        qpos = self.task.start["qpos"].copy()
        end = time.perf_counter() + self.task.max_seconds
        for world in range(self.task.nworld):
            scenes.set_state(mjm, self.mjd, self.task.start, world)
            mujoco.mj_step(mjm, self.mjd, nstep=self.task.steps)
            qpos[world] = self.mjd.qpos
            if time.perf_counter() > end:
                break
        return self.task.steps * (world + 1), qpos


class Rollout:
    """`mujoco.rollout`, all worlds and steps in one call, outputs allocated beforehand."""

    def __init__(self, task: Task):
        mjm = task.mjm
        self.task = task
        self.threads = task.threads
        self.pool = rollout.Rollout(nthread=task.threads)
        self.mjds = [mujoco.MjData(mjm) for _ in range(task.threads)]
        self.start = _full_states(task)
        self.control = np.repeat(task.start["ctrl"][:, None], task.steps, axis=1)
        self.state = np.empty((task.nworld, task.steps, self.start.shape[1]))
        self.sensordata = np.empty((task.nworld, task.steps, mjm.nsensordata))

    def one_step(self) -> np.ndarray:
        """Velocities after one step."""
        state, _ = self.pool.rollout(self.task.mjm, self.mjds, self.start, self.control[:, :1])
        first = 1 + self.task.mjm.nq
        return state[:, 0, first : first + self.task.mjm.nv]

    def run(self) -> tuple[int, np.ndarray]:
        """All steps of all worlds."""
        outputs = {"state": self.state, "sensordata": self.sensordata}
        self.pool.rollout(self.task.mjm, self.mjds, self.start, self.control, **outputs)
        return self.task.steps * self.task.nworld, self.state[:, -1, 1 : 1 + self.task.mjm.nq]


def _full_states(task: Task) -> np.ndarray:
    """Starting states as rows of mjSTATE_FULLPHYSICS, time first."""
    kind = mujoco.mjtState.mjSTATE_FULLPHYSICS
    mjd = mujoco.MjData(task.mjm)
    rows = np.empty((task.nworld, mujoco.mj_stateSize(task.mjm, kind)))
    for world, row in enumerate(rows):
        scenes.set_state(task.mjm, mjd, task.start, world)
        mujoco.mj_getState(task.mjm, mjd, row, kind)
    return rows
