"""MJX: `jax.jit(jax.vmap(mjx.step))`."""

from __future__ import annotations

import os
import time
from importlib.metadata import version

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco import mjx

from engines.base import Task

MODES = ("jit",)
VERSIONS = {"mujoco": mujoco.__version__, "mujoco-mjx": version("mujoco-mjx"), "jax": jax.__version__}


def make(task: Task) -> Jit:
    """Prepare the engine."""
    jax.config.update("jax_enable_x64", task.dtype == "float64")
    return Jit(task)


class Jit:
    """One compiled call per step over the whole batch."""

    def __init__(self, task: Task):
        self.task = task
        self.threads = _limit_cores(task.threads)
        self.m = mjx.put_model(task.mjm)
        self.start = self._start()
        self.step = jax.jit(jax.vmap(mjx.step, in_axes=(None, 0))).lower(self.m, self.start).compile()

    def _start(self) -> mjx.Data:
        one = mjx.make_data(self.m)
        batch = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.task.nworld, *leaf.shape)), one)
        fields = {key: jnp.asarray(value, one.qpos.dtype) for key, value in self.task.start.items()}
        return batch.replace(**fields)

    def one_step(self) -> np.ndarray:
        """Velocities after one step."""
        return np.asarray(self.step(self.m, self.start).qvel)

    def run(self) -> tuple[int, np.ndarray]:
        """Steps until their number or the time is reached."""
        d, done, end = self.start, 0, time.perf_counter() + self.task.max_seconds
        while done < self.task.steps and time.perf_counter() < end:
            d = jax.block_until_ready(self.step(self.m, d))
            done += 1
        return done * self.task.nworld, np.asarray(d.qpos)


def _limit_cores(threads: int) -> int:
    """Give this process that many cores: XLA takes as many threads as it finds cores when it starts."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    os.sched_setaffinity(0, cores)
    return len(cores)
