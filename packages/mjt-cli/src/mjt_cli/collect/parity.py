"""Compares results: compiled against eager, and one step against MuJoCo C."""

from __future__ import annotations

import mujoco
import numpy as np
import torch

import mujoco_torch as mjt
from mjt_cli.report import COMPILED_TOLERANCE, PARITY_TOLERANCE, Comparison

PARITY_WORLDS = 8
INPUT_FIELDS = (
    "time", "qpos", "qvel", "act", "history", "plastic", "ctrl", "qfrc_applied", "xfrc_applied", "eq_active",
    "mocap_pos", "mocap_quat", "qacc_warmstart",
)  # fmt: skip
OUTPUT_FIELDS = ("qpos", "qvel", "qacc")

# Rounding decides how many iterations a solver takes to its tolerance: no measure of equality.
NOT_COMPARED = ("solver_niter",)


def leaves(d: mjt.Data) -> dict[str, torch.Tensor]:
    """All tensors of the data by name, nested ones as `contact.dist`."""
    flat = d.to_tensordict().flatten_keys(".").items()
    return {name: value for name, value in flat if isinstance(value, torch.Tensor)}


def compare_data(got: mjt.Data, expected: mjt.Data, dtype: str) -> Comparison:
    """Worst relative error of every field of two batches but those `NOT_COMPARED`."""
    wanted = leaves(expected)
    errors: dict[str, float | None] = {
        name: relative_error(_numpy(value), _numpy(wanted[name]))
        for name, value in leaves(got).items()
        if name not in NOT_COMPARED
    }
    return Comparison(errors, COMPILED_TOLERANCE[dtype], expected.batch_size[0])


def compare_with_c(mjm: mujoco.MjModel, before: mjt.Data, after: mjt.Data, dtype: str) -> Comparison:
    """Steps the first worlds of `before` in MuJoCo C and compares them with `after`, world by world."""
    worlds = min(PARITY_WORLDS, before.batch_size[0])
    errors: dict[str, list[float]] = {name: [] for name in OUTPUT_FIELDS}
    mjd = mujoco.MjData(mjm)
    for world in range(worlds):
        _load_state(mjm, mjd, before, world)
        mujoco.mj_step(mjm, mjd)
        for name in OUTPUT_FIELDS:
            errors[name].append(relative_error(_numpy(getattr(after, name)[world]), getattr(mjd, name)))
    worst = {name: float(np.max(values)) for name, values in errors.items()}
    return Comparison({**worst}, PARITY_TOLERANCE[dtype], worlds)


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    """max|got - expected| / max(1, max|expected|); NaN where only one is a number or shapes differ."""
    if got.shape != expected.shape:
        return float("nan")
    if got.size == 0:
        return 0.0
    both_nan = np.isnan(got) & np.isnan(expected)
    equal = both_nan | (got == expected)
    with np.errstate(invalid="ignore"):
        difference = np.where(equal, 0.0, np.abs(got - expected))
    return float(difference.max() / max(1.0, np.abs(np.where(both_nan, 0.0, expected)).max()))


def bad_worlds(d: mjt.Data) -> int:
    """Worlds whose state or acceleration is not finite, or that a step reset since it was not."""
    bad = torch.stack([~torch.isfinite(getattr(d, name)).all(-1) for name in OUTPUT_FIELDS])
    return int((bad.any(0) | (d.warning > 0).any(-1)).sum())


def _load_state(mjm: mujoco.MjModel, mjd: mujoco.MjData, d: mjt.Data, world: int) -> None:
    mujoco.mj_resetData(mjm, mjd)
    for name in INPUT_FIELDS:
        value = getattr(d, name, None)
        if value is None or value[world].numel() == 0:
            continue
        if name == "time":
            mjd.time = float(value[world])
        else:
            getattr(mjd, name)[:] = _numpy(value[world])


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().to(torch.float64).numpy()
