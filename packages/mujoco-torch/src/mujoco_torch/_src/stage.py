"""How a function on the inside layout becomes a public stage.

A stage is written once, as ``f(m, d) -> d`` on ``InsideModel`` and ``InsideData``. ``public`` makes it the function
a user calls: it takes the fields read from Data, crosses the border of layouts, and puts those written into a new
Data.

``torch.compile`` does not interpret the body of a stage: the core is *allowed in graph*, one call that AOTAutograd
traces. Dynamo sees the state tensors, one flat tensor of model arrays and the name of the topology, whatever the stage
does with them: a step has few guards, no graph break, and Python in a stage costs nothing after compilation.
(Measured on a toy of 50 lines: 67 guards, against 247 with ``nonstrict_trace``, whose pytree flattening guards on every
registered pytree class.)
"""

import functools
from collections.abc import Callable

import torch
import torch._C._functorch as functorch
from torch import Tensor

from mujoco_torch._src import layout
from mujoco_torch._src.errors import StateError
from mujoco_torch._src.topology import Topology
from mujoco_torch._src.types import (
    Data,
    InsideData,
    InsideModel,
    Model,
    new_data,
    read_field,
    replace_fields,
    shape_of,
)

Inside = Callable[[InsideModel, InsideData], InsideData]
ALL = tuple(layout.FIELDS)


def public(
    *, reads: tuple[str, ...], writes: tuple[str, ...]
) -> Callable[[Inside], Callable[[Model, Data], Data]]:
    """Make a public stage ``(Model, Data) -> Data`` of an inside function that reads and writes the named fields.

    The wrapped function is kept as ``.inside`` for other stages to call.
    """
    # Dynamo guards on each element of a tuple of names, but folds the split of one constant string.
    read_names, written_names = " ".join(reads), " ".join(writes)
    whole = set(writes) == set(ALL)

    def wrap(fn: Inside) -> Callable[[Model, Data], Data]:
        def run(
            digest: str, batched: bool, params: Tensor, *inputs: Tensor, weights: tuple[Tensor, ...]
        ) -> tuple[Tensor, ...]:
            topology = Topology.of(digest)
            given = dict(zip(_nonempty(topology, reads), inputs, strict=True))
            fields = {
                name: _enter(topology, name, given.get(name), batched, inputs[0], params) for name in reads
            }
            d = fn(InsideModel(topology, params, weights), InsideData(fields))
            return _leave(topology, {name: getattr(d, name) for name in writes}, batched)

        @torch.compiler.allow_in_graph
        def core(digest: str, batched: bool, params: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
            count = len(_nonempty(Topology.of(digest), reads))
            stage = functools.partial(run, weights=inputs[count:])
            return _mapped(stage, digest, batched, params, inputs[:count])

        @functools.wraps(fn)
        def call(m: Model, d: Data) -> Data:
            check_batch(d)
            empty = m.topology.empty_fields.split()
            inputs = [read_field(d, name) for name in read_names.split() if name not in empty]
            # Naming torch makes this a frame that Dynamo compiles by itself, after a graph break in the caller.
            batched = d.batch_size != torch.Size([])
            outputs = core(m.topology.digest, batched, m.params, *inputs, *m.weights)
            fields = dict(zip(written_names.split(), outputs, strict=True))
            return new_data(fields, d.batch_size) if whole else replace_fields(d, fields)

        # Dynamo counts recompiles per code object: a stage has its own, not one shared by all of them.
        call.__code__ = call.__code__.replace(co_name=fn.__name__)
        call.inside = fn
        return call

    return wrap


def check_batch(d: Data) -> None:
    """Raise StateError unless it is one world or a batch of them."""
    if len(d.batch_size) > 1:
        raise StateError(
            f"Data has batch size {tuple(d.batch_size)}; allowed are () for one world and (nworld,). "
            "Flatten the batch first: d.reshape(-1)."
        )


def _mapped(run: Callable, digest: str, batched: bool, params: Tensor, inputs: tuple) -> tuple[Tensor, ...]:
    """A stage under ``torch.vmap``: the mapped dimension is a batch of worlds, run natively, not one by one.

    The worlds are taken out of vmap's wrapper and put back into it, which works since neither Dynamo nor functorch
    look into a stage. Where another transform (``grad``) is inside the ``vmap``, the operators' own rules serve.
    """
    levels = [functorch.maybe_get_level(x) for x in inputs if functorch.is_batchedtensor(x)]
    if not levels or functorch.is_batchedtensor(params):
        return run(digest, batched, params, *inputs)
    level = max(levels)

    def unwrap(x: Tensor) -> Tensor:
        if functorch.is_batchedtensor(x) and functorch.maybe_get_level(x) == level:
            return functorch.get_unwrapped(x).movedim(functorch.maybe_get_bdim(x), 0)
        return x.unsqueeze(0)

    unwrapped = [unwrap(x) for x in inputs]
    count = max(x.shape[0] for x in unwrapped)
    unwrapped = [x.expand(count, *x.shape[1:]) for x in unwrapped]
    if batched:
        unwrapped = [x.flatten(0, 1) for x in unwrapped]
    outputs = _mapped(run, digest, True, params, tuple(unwrapped))
    if batched:
        outputs = [x.unflatten(0, (count, -1)) for x in outputs]
    return tuple([functorch._add_batch_dim(x, 0, level) for x in outputs])


def inside(m: Model, d: Data, reads: tuple[str, ...]) -> tuple[InsideModel, InsideData]:
    """Model and some fields of a Data in the inside layout, for a helper that is not a stage."""
    batched = len(d.batch_size) == 1
    inputs = {name: read_field(d, name) for name in _nonempty(m.topology, reads)}
    like = next(iter(inputs.values()))
    fields = {name: _enter(m.topology, name, inputs.get(name), batched, like, m.params) for name in reads}
    return InsideModel(m.topology, m.params, m.weights), InsideData(fields)


def _nonempty(topology: Topology, names: tuple[str, ...]) -> list[str]:
    empty = topology.empty_fields.split()
    return [name for name in names if name not in empty]


def _enter(
    topology: Topology, name: str, x: Tensor | None, batched: bool, like: Tensor, params: Tensor
) -> Tensor:
    """Inside tensor of a field, contiguous, so that no operator copies it.

    One that has no elements in this model is made here, not taken from the user.
    """
    field = layout.FIELDS[name]
    shape = shape_of(topology, field)
    batch = like.shape[:1] if batched else ()
    if x is None:
        x = params.new_zeros((*batch, *shape), dtype=torch.int32 if field.integer else None)
    check_fits(name, x, (*batch, *shape), field, params)
    return layout.to_inside(field, x if batched else x.unsqueeze(0)).contiguous()


def check_fits(name: str, x: Tensor, shape: tuple[int, ...], field: layout.Field, params: Tensor) -> None:
    """Raise StateError unless a field has the shape, dtype and device that the model needs."""
    if tuple(x.shape) != shape:
        raise StateError(f"Data.{name} has shape {tuple(x.shape)}, the model needs {shape}")
    if not field.integer and x.dtype != params.dtype:
        raise StateError(
            f"Data.{name} is {x.dtype}, the model is {params.dtype}; make both with one dtype: put_model(dtype=...)"
        )
    if x.device != params.device:
        raise StateError(
            f"Data.{name} is on {x.device}, the model on {params.device}; move it: d.to(m.device)"
        )


def _leave(topology: Topology, fields: dict[str, Tensor], batched: bool) -> tuple[Tensor, ...]:
    """Public tensors of the fields; those without elements are one and the same if they look the same."""
    empty, made = topology.empty_fields.split(), {}
    outputs = []
    for name, x in fields.items():
        field = layout.FIELDS[name]
        public = layout.to_public(field, x)
        if name in empty:
            kind = shape_of(topology, field), public.dtype
            public = made.setdefault(kind, public.new_zeros(public.shape))
        elif name in layout.STATE:
            public = public.clone(memory_format=torch.contiguous_format)
        outputs.append(public if batched else public.squeeze(0))
    return tuple(outputs)
