"""A user's own functions in the step: control and passive forces (``mjcb_control``, ``mjcb_passive``)."""

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from mujoco_torch._src import layout
from mujoco_torch._src.errors import ArgumentError, StateError
from mujoco_torch._src.types import InsideData, InsideModel, Model, shape_of

CONTROLLED = ("ctrl", "qfrc_applied", "xfrc_applied")
"""What a control callback may set."""


class Callback:
    """A user's function as a part of a model's static structure; one function is one callback, with one number.

    The number names the function in the structure's digest, so that a compiled step is not taken for that of another.
    """

    _numbers: ClassVar[weakref.WeakKeyDictionary[Callable, int]] = weakref.WeakKeyDictionary()
    _next: ClassVar[itertools.count] = itertools.count()

    def __init__(self, fn: Callable) -> None:
        if not callable(fn):
            raise ArgumentError(f"a callback is {fn!r}; it must be a function of the model and a state")
        self.fn = fn
        if fn not in self._numbers:
            self._numbers[fn] = next(self._next)
        self.number = self._numbers[fn]

    @property
    def weights(self) -> list[Tensor]:
        """The tensors of a function that is a module."""
        return list(_tensors(self.fn).values())

    def __call__(self, m: InsideModel, d: InsideData, weights: Sequence[Tensor]) -> Any:
        """What the function returns, given the model and the state as a user sees them; and a module its tensors."""
        inputs = Model(m._topology, m._params, m._weights), State(d)
        if not isinstance(self.fn, torch.nn.Module):
            return self.fn(*inputs)
        named = dict(zip(_tensors(self.fn), weights, strict=True))
        return torch.func.functional_call(self.fn, named, inputs)

    def __repr__(self) -> str:
        return f"Callback({self.number})"

    def __reduce__(self):
        return Callback, (self.fn,)


def _tensors(fn: Callable) -> dict[str, Tensor]:
    """Parameters and buffers of a module by their names, each once; of another function none."""
    if not isinstance(fn, torch.nn.Module):
        return {}
    return dict(fn.named_parameters()) | dict(fn.named_buffers())


class State:
    """What a callback sees of the worlds: the fields of Data that are computed by then, worlds first.

    Read only. There is always a world axis, of size 1 for a single world. Contacts are fields of ``d.contact``.
    """

    def __init__(self, d: InsideData, prefix: str = "") -> None:
        self._d = d
        self._prefix = prefix

    @property
    def batch_size(self) -> torch.Size:
        """``(nworld,)``."""
        return self._d.qpos.shape[-1:]

    @property
    def contact(self) -> "State":
        """The contact slots."""
        return State(self._d, "contact_")

    def __getattr__(self, name: str) -> Tensor:
        full = self._prefix + name
        if full not in layout.FIELDS:
            raise AttributeError(f"Data has no field {name!r}")
        return layout.to_public(layout.FIELDS[full], getattr(self._d, full))


def callbacks(**functions: Callable | None) -> dict[str, Callback | None]:
    """Static values of a model's structure for some callbacks.

    Raises:
      ArgumentError: one of them is not callable.
    """
    return {name: None if fn is None else Callback(fn) for name, fn in functions.items()}


def control(m: InsideModel, d: InsideData) -> InsideData:
    """Controls and applied forces as the model's control callback sets them, if it has one and actuation is on.

    Raises:
      StateError: the callback returned what cannot be used.
    """
    if not m.mjcb_control or not m.actuation:
        return d
    count = len(m.mjcb_control.weights)
    found = m.mjcb_control(m, d, m._weights[:count])
    if not isinstance(found, Mapping) or not set(found) <= set(CONTROLLED):
        what = sorted(found) if isinstance(found, Mapping) else type(found).__name__
        raise StateError(f"mjcb_control returned {what}; it must return a dict of {', '.join(CONTROLLED)}")
    return d.replace(**{name: _entered(m, d, "mjcb_control", name, x) for name, x in found.items()})


def passive(m: InsideModel, d: InsideData) -> InsideData:
    """Passive forces with those of the model's passive callback added, if it has one.

    As in C it is not called where springs and dampers are both disabled.

    Raises:
      StateError: the callback returned what cannot be used.
    """
    if not m.mjcb_passive or m.passive_off:
        return d
    count = len(m.mjcb_passive.weights)
    force = m.mjcb_passive(m, d, m._weights[len(m._weights) - count :])
    force = _entered(m, d, "mjcb_passive", "qfrc_passive", force)
    return d.replace(qfrc_passive=d.qfrc_passive + force)


def _entered(m: InsideModel, d: InsideData, callback: str, name: str, x: Any) -> Tensor:
    """A field that a callback returned, in the inside layout."""
    field, qpos = layout.FIELDS[name], d.qpos
    shape = (qpos.shape[-1], *shape_of(m._topology, field))
    if not isinstance(x, Tensor) or x.shape != shape or x.dtype != qpos.dtype or x.device != qpos.device:
        got = f"{tuple(x.shape)} {x.dtype} on {x.device}" if isinstance(x, Tensor) else type(x).__name__
        raise StateError(
            f"{callback} returned {got} for {name}; it must be a tensor {shape} {qpos.dtype} on {qpos.device}"
        )
    return layout.to_inside(field, x)
