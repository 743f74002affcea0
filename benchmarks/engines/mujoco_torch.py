"""mujoco_torch: `step`, eager or compiled by `torch.compile`; `mujoco_torch.compile` of the step and of the rollout."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import mujoco
import numpy as np
import tensordict
import torch

import machine
import mujoco_torch as mjt
from engines.base import Task

TORCH_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
MODES = ("eager", *TORCH_MODES, "compile", "compile-state", "rollout")
VERSIONS = {module.__name__: module.__version__ for module in (mjt, torch, tensordict, mujoco)}
VERSIONS["commit"] = machine.commit(Path(mjt.__file__).parent)


def make(task: Task) -> Batch | Rollout:
    """Prepare the engine for the task's mode."""
    torch.set_grad_enabled(False)
    return Rollout(task) if task.mode == "rollout" else Batch(task)


class _Prepared:
    """The model and the starting states where the engine needs them."""

    def __init__(self, task: Task):
        torch.set_num_threads(task.threads)
        self.task = task
        self.threads = task.threads
        self.m = mjt.put_model(task.mjm, device=task.device, dtype=getattr(torch, task.dtype))
        self.start = self._start()

    def _start(self) -> mjt.Data:
        d = mjt.make_data(self.m, nworld=self.task.nworld)
        return d.replace(**{key: torch.as_tensor(value).to(d.qpos) for key, value in self.task.start.items()})

    def _sync(self, d: mjt.Data) -> mjt.Data:
        if d.qpos.is_cuda:
            torch.cuda.synchronize()
        return d


class Batch(_Prepared):
    """A native batch of worlds, one call per step."""

    def __init__(self, task: Task):
        super().__init__(task)
        self.step = _step(task.mode)
        self.reuses_outputs = task.device != "cpu" and task.mode in ("reduce-overhead", "max-autotune")
        self._sync(self._advance(self._advance(self.start)))

    def _advance(self, d: mjt.Data) -> mjt.Data:
        """One step; outputs that the next call would overwrite are copied."""
        d = self.step(self.m, d)
        return d.clone() if self.reuses_outputs else d

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


class Rollout(_Prepared):
    """All steps in one call, which takes the controls of every step and keeps its positions and velocities."""

    def __init__(self, task: Task):
        super().__init__(task)
        self.rollout = mjt.compile(mjt.rollout)
        self.controls = self.start.ctrl[:, None].repeat(1, task.steps, 1)
        self._run(1)

    def one_step(self) -> np.ndarray:
        """Velocities after one step."""
        return self._run(1).qvel.cpu().numpy()

    def run(self) -> tuple[int, np.ndarray]:
        """All steps of all worlds; a call cannot be ended before its last step."""
        return self.task.steps * self.task.nworld, self._run(self.task.steps).qpos.cpu().numpy()

    def _run(self, steps: int) -> mjt.Data:
        d, _ = self.rollout(self.m, self.start, self.controls[:, :steps], keep=("qpos", "qvel"))
        return self._sync(d)


def _step(mode: str) -> Callable[[mjt.Model, mjt.Data], mjt.Data]:
    if mode == "eager":
        return mjt.step
    if mode in TORCH_MODES:
        return torch.compile(mjt.step, mode=mode, fullgraph=True)
    return mjt.compile(mjt.step, keep=() if mode == "compile-state" else None)
