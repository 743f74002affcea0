"""A user's own functions in the step, each under the name of MuJoCo's callback.

Control (``mjcb_control``), passive forces (``mjcb_passive``), and what actuators of type user do (``mjcb_act_dyn``,
``mjcb_act_gain``, ``mjcb_act_bias``).
"""

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from mujoco_torch._src import layout
from mujoco_torch._src.errors import ArgumentError, StateError
from mujoco_torch._src.types import InsideData, InsideModel, Model, shape_of

NAMES = ("mjcb_control", "mjcb_passive", "mjcb_act_dyn", "mjcb_act_gain", "mjcb_act_bias")
"""All callbacks, in the order of their tensors in the weights of a model."""
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
        return self._d.qvel.shape[-1:]

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
    found = _called(m, d, "mjcb_control")
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
    force = _entered(m, d, "mjcb_passive", "qfrc_passive", _called(m, d, "mjcb_passive"))
    return d.replace(qfrc_passive=d.qfrc_passive + force)


def act_dyn(m: InsideModel, d: InsideData) -> Tensor:
    """Rates ``[na, B]`` of the activations with user dynamics, zero for the others.

    As in C the callback is asked for disabled actuators, too.

    Raises:
      StateError: the callback returned what cannot be used.
    """
    return m.user_dyn_act @ _of_users(m, d, "mjcb_act_dyn", m.user_dyn_mask)


def act_gain(m: InsideModel, d: InsideData) -> Tensor:
    """Gains ``[nout, B]`` of the enabled actuators with a user gain, zero for the others.

    Raises:
      StateError: the callback returned what cannot be used.
    """
    return m.user_gain_out @ _of_users(m, d, "mjcb_act_gain", m.user_gain_mask)


def act_bias(m: InsideModel, d: InsideData) -> Tensor:
    """Biases ``[nout, B]`` of the enabled actuators with a user bias, zero for the others.

    Raises:
      StateError: the callback returned what cannot be used.
    """
    return m.user_bias_out @ _of_users(m, d, "mjcb_act_bias", m.user_bias_mask)


def _called(m: InsideModel, d: InsideData, name: str) -> Any:
    """What a callback of the model returns."""
    start = 0
    for other in NAMES[: NAMES.index(name)]:
        callback = getattr(m, other)
        start += len(callback.weights) if callback else 0
    callback = getattr(m, name)
    return callback(m, d, m._weights[start : start + len(callback.weights)])


def _of_users(m: InsideModel, d: InsideData, name: str, mask: Tensor) -> Tensor:
    """A callback's value ``[nactuator, B]`` for each actuator of a mask; others may have any, even NaN."""
    shape = (d.qvel.shape[-1], m.nactuator)
    value = _checked(d, _called(m, d, name), name, "the actuators", shape).movedim(0, -1)
    return torch.where(mask > 0, value, 0.0)


def _entered(m: InsideModel, d: InsideData, callback: str, name: str, x: Any) -> Tensor:
    """A field that a callback returned, in the inside layout."""
    field = layout.FIELDS[name]
    shape = (d.qvel.shape[-1], *shape_of(m._topology, field))
    return layout.to_inside(field, _checked(d, x, callback, name, shape))


def _checked(d: InsideData, x: Any, callback: str, what: str, shape: tuple[int, ...]) -> Tensor:
    """What a callback returned for a thing, if it is a tensor that fits."""
    like = d.qvel
    if not isinstance(x, Tensor) or x.shape != shape or x.dtype != like.dtype or x.device != like.device:
        got = f"{tuple(x.shape)} {x.dtype} on {x.device}" if isinstance(x, Tensor) else type(x).__name__
        raise StateError(
            f"{callback} returned {got} for {what}; it must be a tensor {shape} {like.dtype} on {like.device}"
        )
    return x
