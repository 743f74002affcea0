"""How a function on the inside layout becomes a public stage.

A stage is written once, as ``f(m, d) -> d`` on ``InsideModel`` and ``InsideData``. ``public`` wraps it into the function a
user calls: it checks the fields read, crosses the border of layouts, and puts the fields written into a new Data.

``torch.compile`` does not interpret the body of a stage: it is a *non-strict traced* function, entered by AOTAutograd
directly. Dynamo sees the state tensors and one flat tensor of model arrays, whatever the stage does with them, so a
step has few guards, no graph breaks and a short trace. (DESIGN: the compiled core takes and returns flat tensors.)
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from mujoco_torch._src import layout
from mujoco_torch._src.topology import Topology
from mujoco_torch._src.types import (
    Data,
    InsideData,
    InsideModel,
    Model,
    check_fits,
    new_data,
    read_field,
    replace_fields,
)

# Public as torch.compiler.nonstrict_trace from torch 2.14 on.
nonstrict_trace = getattr(torch.compiler, "nonstrict_trace", None) or torch._dynamo.nonstrict_trace

Inside = Callable[[InsideModel, InsideData], InsideData]
ALL = tuple(layout.FIELDS)


def public(*, reads: tuple[str, ...], writes: tuple[str, ...]) -> Callable[[Inside], Callable[[Model, Data], Data]]:
    """Make a public stage ``(Model, Data) -> Data`` of an inside function that reads and writes the named fields.

    The wrapped function is kept as ``.inside`` for other stages to call.
    """

    def wrap(fn: Inside) -> Callable[[Model, Data], Data]:
        @nonstrict_trace
        def core(topology: Topology, params: Tensor, batched: bool, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
            fields = {name: _enter(name, x, batched) for name, x in zip(reads, inputs, strict=True)}
            d = fn(InsideModel(topology, params), InsideData(fields))
            return {name: _leave(name, getattr(d, name), batched) for name in writes}

        @functools.wraps(fn)
        def call(m: Model, d: Data) -> Data:
            check_fits(m, d, reads)
            inputs = tuple([read_field(d, name) for name in reads])
            outputs = core(m.topology, m.params, len(d.batch_size) == 1, inputs)
            return new_data(outputs, d.batch_size) if writes is ALL else replace_fields(d, outputs)

        call.inside = fn
        return call

    return wrap


def _enter(name: str, x: Tensor, batched: bool) -> Tensor:
    return layout.to_inside(layout.FIELDS[name], x if batched else x.unsqueeze(0))


def _leave(name: str, x: Tensor, batched: bool) -> Tensor:
    x = layout.to_public(layout.FIELDS[name], x)
    if name in layout.STATE:
        x = x.clone(memory_format=torch.contiguous_format)
    return x if batched else x.squeeze(0)
