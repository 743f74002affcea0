"""mujoco_torch: `step`, eager or compiled."""

from __future__ import annotations

import time
from collections.abc import Callable

import mujoco
import numpy as np
import tensordict
import torch

import mujoco_torch as mjt
from engines.base import Task

MODES = ("eager", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
VERSIONS = {module.__name__: module.__version__ for module in (mjt, torch, tensordict, mujoco)}


def make(task: Task) -> Batch:
    """Prepare the engine."""
    torch.set_grad_enabled(False)
    return Batch(task)


class Batch:
    """A native batch of worlds, one call per step."""

    def __init__(self, task: Task):
        torch.set_num_threads(task.threads)
        self.task = task
        self.threads = task.threads
        self.m = mjt.put_model(task.mjm, device=task.device, dtype=getattr(torch, task.dtype))
        self.start = self._start()
        self.step = _step(task.mode)
        self.reuses_outputs = task.device != "cpu" and task.mode in ("reduce-overhead", "max-autotune")
        self._sync(self._advance(self._advance(self.start)))

    def _start(self) -> mjt.Data:
        d = mjt.make_data(self.m, nworld=self.task.nworld)
        return d.replace(**{key: torch.as_tensor(value).to(d.qpos) for key, value in self.task.start.items()})

    def _advance(self, d: mjt.Data) -> mjt.Data:
        """One step; outputs that the next call would overwrite are copied."""
        d = self.step(self.m, d)
        return d.clone() if self.reuses_outputs else d

    def _sync(self, d: mjt.Data) -> mjt.Data:
        if d.qpos.is_cuda:
            torch.cuda.synchronize()
        return d

    def one_step(self) -> np.ndarray:
        """Velocities after one step."""
        return self._advance(self.start).qvel.cpu().numpy()

    def run(self) -> tuple[int, np.ndarray]:
        """Steps until their number or the time is reached."""
        d, done, end = self.start, 0, time.perf_counter() + self.task.max_seconds
        while done < self.task.steps and time.perf_counter() < end:
            d = self._advance(d)
            done += 1
        return done * self.task.nworld, self._sync(d).qpos.cpu().numpy()


def _step(mode: str) -> Callable[[mjt.Model, mjt.Data], mjt.Data]:
    return mjt.step if mode == "eager" else torch.compile(mjt.step, mode=mode, fullgraph=True)
