"""What the runner asks of an engine."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import mujoco
import numpy as np


@dataclasses.dataclass(frozen=True)
class Task:
    """What to measure: a model, its starting states and how to run them."""

    mjm: mujoco.MjModel
    start: dict[str, np.ndarray]
    dtype: str
    mode: str
    threads: int
    device: str
    steps: int
    max_seconds: float

    @property
    def nworld(self) -> int:
        """Number of worlds."""
        return len(self.start["qpos"])


class Engine(Protocol):
    """A prepared engine: compiled, with the states where it needs them."""

    threads: int

    def one_step(self) -> np.ndarray:
        """Velocities after one step from the starting states, (nworld, nv)."""

    def run(self) -> tuple[int, np.ndarray]:
        """Integrate from the starting states; steps of all worlds together, last positions (nworld, nq)."""
