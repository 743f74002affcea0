"""Resets of worlds whose state is bad (``mj_checkPos``, ...), and of any world on request (``mj_resetData``)."""

import torch
from torch import Tensor

from mujoco_torch._src import layout
from mujoco_torch._src.enums import WarningType
from mujoco_torch._src.errors import ArgumentError, StateError
from mujoco_torch._src.structure.dynamics import KEYED
from mujoco_torch._src.types import Data, InsideData, InsideModel, Model, read_field, replace_fields

MAXVAL = 1e10  # mjMAXVAL: a number beyond it, or NaN, is bad


def check_state(m: InsideModel, d: InsideData) -> InsideData:
    """Worlds with a bad position or velocity, reset (``mj_checkPos``, ``mj_checkVel``).

    The state is replaced before anything is computed from it, so gradients of what follows are finite in all worlds:
    zero in those that are reset.
    """
    if not m.autoreset:
        return d
    bad_qpos = _bad(d.qpos)
    bad_qvel = _bad(d.qvel) & ~bad_qpos  # C looks at the velocity after a reset for the position
    d = _select(m, d, bad_qpos | bad_qvel, "initial")
    return _count(m, d, {WarningType.BADQPOS: bad_qpos, WarningType.BADQVEL: bad_qvel})


def has_bad_state(d: InsideData) -> bool:
    """Whether ``check_state`` has something to do; it waits for the device."""
    return not all(float(x.abs().amax()) <= MAXVAL for x in (d.qpos, d.qvel) if x.numel())


def check_acc(m: InsideModel, d: InsideData) -> InsideData:
    """Note, for ``replace_bad``, in which worlds the acceleration is bad (``mj_checkAcc``)."""
    return d.replace(bad_qacc=_bad(d.qacc)) if m.autoreset else d


def note_bad(m: InsideModel, d: InsideData, qpos: Tensor, qvel: Tensor) -> InsideData:
    """Note, at the end of a step from a position and velocity, whether any world has to be reset."""
    return d.replace(suspect=(d.bad_qacc | _bad(qpos) | _bad(qvel)).any()) if m.autoreset else d


def replace_bad(m: InsideModel, d: InsideData, stepped: str = "stepped") -> InsideData:
    """The state at the end of a step, where the acceleration was bad that of a fresh world after one step."""
    if not m.autoreset:
        return d
    d = _select(m, d, d.bad_qacc, stepped)
    return _count(m, d, {WarningType.BADQACC: d.bad_qacc})


def _bad(x: Tensor) -> Tensor:
    """Whether a world has a bad number, ``[B]``."""
    if not x.shape[0]:
        return torch.zeros_like(x.sum(0), dtype=torch.bool)
    return ~(x.abs().amax(0) <= MAXVAL)  # the largest of numbers among which there is a NaN is NaN


def _select(m: InsideModel, d: InsideData, bad: Tensor, source: str) -> InsideData:
    """State fields, in bad worlds those that the model has from some source."""
    empty = m.empty_fields.split()
    fields = {}
    for name in layout.STATE:
        if name == "warning" or name in empty:
            continue
        field, x = layout.FIELDS[name], d.fields[name]
        value = layout.to_inside(field, getattr(m, f"{source}_{name}").unsqueeze(0))
        fields[name] = torch.where(bad, value.to(x.dtype), x)
    return d.replace(**fields)


def _count(m: InsideModel, d: InsideData, found: dict[WarningType, Tensor]) -> InsideData:
    warning = d.warning
    for kind, bad in found.items():
        warning = warning + ((m.warning_kind == kind) & bad)
    return d.replace(warning=warning)


def reset_data(m: Model, d: Data, mask: Tensor | None = None, keyframe: int | Tensor | None = None) -> Data:
    """Worlds back to the state of a fresh one, or to a keyframe (``mj_resetData``, ``mj_resetDataKeyframe``).

    Functional; other worlds keep every bit. Derived fields of worlds that are reset are zero, as after ``make_data``.

    Args:
      m: the model.
      d: the state, one world or a batch.
      mask: which worlds to reset, bool, ``(nworld,)``; all if None.
      keyframe: number of the keyframe, for all worlds or for each of them, ``(nworld,)``; qpos0 if None.

    Departures from C:
      1. A keyframe tensor out of range is not found; torch raises, or on a GPU fails, where it looks it up.

    Raises:
      StateError: the mask or the keyframes do not fit the batch.
      ArgumentError: there is no such keyframe.
    """
    if mask is not None and (mask.dtype != torch.bool or mask.shape != d.batch_size):
        raise StateError(
            f"mask is {mask.dtype} {tuple(mask.shape)}; it must be torch.bool {tuple(d.batch_size)}, one for each world"
        )
    state = {name: getattr(m, f"initial_{name}") for name in layout.STATE}
    if keyframe is not None:
        _check_keyframe(m, d.batch_size, keyframe)
        state |= {name: _chosen(getattr(m, f"key_{name}"), keyframe) for name in KEYED}
    fields = {}
    for name in layout.FIELDS:
        old = read_field(d, name)
        new = state[name].to(old.dtype).expand_as(old) if name in state else torch.zeros_like(old)
        fields[name] = (
            new.clone(memory_format=torch.contiguous_format) if mask is None else _where(mask, new, old)
        )
    return replace_fields(d, fields)


def _chosen(values: Tensor, keyframe: int | Tensor) -> Tensor:
    """Values ``(nkey, ...)`` of a keyframe, or of that of each world."""
    if not isinstance(keyframe, Tensor):
        return values[keyframe]
    return values.index_select(0, keyframe.flatten()).reshape((*keyframe.shape, *values.shape[1:]))


def _where(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(mask.reshape(mask.shape + (1,) * (old.dim() - mask.dim())), new, old)


def _check_keyframe(m: Model, batch: torch.Size, keyframe: int | Tensor) -> None:
    if not isinstance(keyframe, Tensor):
        if not 0 <= keyframe < m.nkey:
            raise ArgumentError(f"keyframe is {keyframe}; the model has {m.nkey}, counted from 0")
    elif keyframe.shape != batch or keyframe.is_floating_point() or keyframe.dtype == torch.bool:
        raise StateError(
            f"keyframe is {keyframe.dtype} {tuple(keyframe.shape)}; it must be integer,, {tuple(batch)}"
        )
