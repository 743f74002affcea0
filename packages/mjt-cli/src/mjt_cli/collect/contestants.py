"""The ways to make the steps that `mjt bench` compares: what each runs, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import mujoco
import numpy as np
import torch
from mujoco import rollout

import mujoco_torch as mjt
from mjt_cli.collect.starts import Reference, Starts


class Runner(Protocol):
    """One way to make the steps."""

    def one_step(self) -> np.ndarray:
        """Velocities of all worlds after one step from the starting states; the first call compiles."""

    def run(self) -> None:
        """All steps of all worlds from the starting states."""

    def converged(self) -> float | None:
        """Share of worlds whose solver converged in the last step of the last run; None where nothing tells."""

    def held(self) -> int:
        """Bytes of results that a run writes to memory that is held from run to run."""


class Steps:
    """`mujoco_torch.compile(step)`, one call a step."""

    def __init__(self, m: mjt.Model, d: mjt.Data, steps: int, iterations: int, **options: Any) -> None:
        self.m, self.d, self.steps, self.iterations = m, d, steps, iterations
        self.step: Callable[..., mjt.Data] = mjt.compile(mjt.step, **options)
        self.niter = d.solver_niter

    def one_step(self) -> np.ndarray:
        """Velocities after one step."""
        return to_numpy(self.step(self.m, self.d).qvel)

    def run(self) -> None:
        """Every step is fed the result of the one before."""
        d = self.d
        for _ in range(self.steps):
            d = self.step(self.m, d)
        self.niter = d.solver_niter

    def converged(self) -> float | None:
        """Where the iterations were not kept they are -1."""
        known = bool((self.niter >= 0).all())
        return float((self.niter < self.iterations).double().mean()) if known else None

    def held(self) -> int:
        """Every run makes new results."""
        return 0


class Rollout:
    """`mujoco_torch.compile(rollout)`, one call for all steps."""

    def __init__(self, m: mjt.Model, d: mjt.Data, steps: int, **options: Any) -> None:
        self.m, self.d = m, d
        self.controls = d.ctrl[:, None].expand(-1, steps, -1)
        self.rollout: Callable[..., tuple[mjt.Data, Any]] = mjt.compile(mjt.rollout, **options)

    def one_step(self) -> np.ndarray:
        """Velocities after one step."""
        return to_numpy(self.rollout(self.m, self.d, self.controls[:, :1])[0].qvel)

    def run(self) -> None:
        """The controls are the same in every step; positions and velocities of every step are kept."""
        self.rollout(self.m, self.d, self.controls)

    def converged(self) -> float | None:
        """The iterations are not kept."""
        return None

    def held(self) -> int:
        """Every run makes new results."""
        return 0


class InC:
    """`mujoco.rollout` on threads, outputs allocated beforehand."""

    def __init__(
        self, mjm: mujoco.MjModel, starts: Starts, steps: int, threads: int, reference: Reference
    ) -> None:
        self.mjm, self.steps, self.reference = mjm, steps, reference
        self.pool = rollout.Rollout(nthread=threads)
        self.mjds = [mujoco.MjData(mjm) for _ in range(threads)]
        self.states = starts.full_states()
        self.controls = np.repeat(starts.ctrl[:, None], steps, axis=1)
        shape = starts.nworld, steps
        self.outputs = {
            "state": np.empty((*shape, self.states.shape[1])),
            "sensordata": np.empty((*shape, mjm.nsensordata)),
        }

    def one_step(self) -> np.ndarray:
        """Velocities after one step."""
        first = 1 + self.mjm.nq
        return self._rollout(1)[:, 0, first : first + self.mjm.nv]

    def run(self) -> None:
        """The states of every step are kept."""
        self._rollout(self.steps, **self.outputs)

    def converged(self) -> float | None:
        """Of the sampled worlds: a rollout does not tell."""
        return self.reference.converged

    def held(self) -> int:
        """The states and sensor values of all steps."""
        return sum(output.nbytes for output in self.outputs.values())

    def _rollout(self, steps: int, **outputs: np.ndarray) -> np.ndarray:
        controls = self.controls[:, :steps] if self.mjm.nu else None
        return self.pool.rollout(self.mjm, self.mjds, self.states, controls, nstep=steps, **outputs)[0]


def start_data(m: mjt.Model, starts: Starts) -> mjt.Data:
    """The starting states as a batch."""
    d = mjt.make_data(m, starts.nworld)
    fields = {name: getattr(starts, name) for name in ("qpos", "qvel", "act", "ctrl")}
    return d.replace(**{name: torch.as_tensor(value).to(d.qpos) for name, value in fields.items()})


def to_numpy(x: torch.Tensor) -> np.ndarray:
    """The numbers in double precision on the host."""
    return x.detach().cpu().to(torch.float64).numpy()
