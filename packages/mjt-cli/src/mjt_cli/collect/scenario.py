"""The scripted life of a batch: the calls a training loop makes; only the first should compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import torch

import mujoco_torch as mjt

FED_BACK_STEPS = 3
INITIAL_SPEED = 0.01

# Torch annotates these for tensors only; they take whole batches of data as well.
stack: Callable[..., Any] = torch.stack
where: Callable[..., Any] = torch.where


@dataclass(frozen=True)
class Scene:
    """A model, its torch form, and what every call of the life shares."""

    mjm: mujoco.MjModel
    m: mjt.Model
    batch: int
    ctrl: torch.Tensor
    qvel: torch.Tensor

    def fresh(self) -> mjt.Data:
        """`make_data` with this scene's controls and small initial velocities, different in every world."""
        return self.excited(mjt.make_data(self.m, self.batch))

    def excited(self, d: mjt.Data) -> mjt.Data:
        """The data with this scene's controls and velocities."""
        return d.replace(ctrl=self.ctrl.clone(), qvel=self.qvel.clone())


def make_scene(mjm: mujoco.MjModel, *, batch: int, dtype: torch.dtype, device: str, seed: int = 0) -> Scene:
    """Puts the model on the device; draws controls in their ranges, (batch, nu), velocities, (batch, nv)."""
    rng = np.random.default_rng(seed)
    limited = np.asarray(mjm.actuator_ctrllimited, dtype=bool)[:, None]
    low, high = np.where(limited, mjm.actuator_ctrlrange, [-1.0, 1.0]).T
    ctrl = rng.uniform(low, high, (batch, mjm.nu))
    qvel = INITIAL_SPEED * rng.standard_normal((batch, mjm.nv))
    return Scene(
        mjm,
        mjt.put_model(mjm, device=device, dtype=dtype),
        batch,
        torch.as_tensor(ctrl, dtype=dtype, device=device),
        torch.as_tensor(qvel, dtype=dtype, device=device),
    )


def life(scene: Scene, step: Callable[[mjt.Data], mjt.Data]) -> Iterator[tuple[str, Callable[[], mjt.Data]]]:
    """Yields the calls of the life, each with its name; the caller runs one before it takes the next.

    `step` takes the data of all worlds and returns the data after one step.
    """
    state = [scene.fresh()]

    def advance(d: mjt.Data) -> mjt.Data:
        state[0] = step(d)
        return state[0]

    yield "first step", lambda: advance(state[0])
    for number in range(1, FED_BACK_STEPS + 1):
        yield f"fed-back step {number}", lambda: advance(state[0])
    reset = masked_reset(scene, state[0])
    yield "step after a masked reset", lambda: advance(reset)
    stacked = stacked_data(scene)
    yield "step of stacked data", lambda: advance(stacked)
    put = copied_data(scene)
    yield "step of put_data", lambda: advance(put)


def masked_reset(scene: Scene, d: mjt.Data) -> mjt.Data:
    """Every second world starts again: `torch.where` over all fields with a mask of shape (batch,)."""
    mask = torch.arange(scene.batch, device=scene.ctrl.device) % 2 == 0
    return where(mask, scene.fresh(), d)


def stacked_data(scene: Scene) -> mjt.Data:
    """`torch.stack` of single worlds."""
    one = mjt.make_data(scene.m)
    return scene.excited(stack([one] * scene.batch))


def copied_data(scene: Scene) -> mjt.Data:
    """`put_data` of one MjData per world."""
    mjd = mujoco.MjData(scene.mjm)
    return scene.excited(mjt.put_data(scene.m, [mjd] * scene.batch))
