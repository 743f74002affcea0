"""Pieces of a step: functions of a block of worlds that Inductor compiles for a CPU, and that have no guards."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._inductor
from torch import Tensor

from mujoco_torch._src import layout
from mujoco_torch._src.stage import Inside
from mujoco_torch._src.topology import Topology
from mujoco_torch._src.types import InsideData, InsideModel, Model, shape_of

LANES = 16
"""The most worlds that a register holds: numbers of float32 in 64 bytes."""

Values = dict[str, Tensor]


class Piece:
    """A function of a block of worlds, compiled without guards, from named inside tensors to named inside tensors."""

    _names = itertools.count()

    def __init__(
        self,
        fn: Inside,
        m: Model,
        inputs: Sequence[str],
        outputs: Sequence[str],
        mode: str | None,
        block: int,
    ) -> None:
        empty = set(m.topology.empty_fields.split())
        self.inputs = tuple(name for name in inputs if name not in empty)
        self.outputs = tuple(name for name in outputs if name not in empty)
        digest, given, wanted = m.topology.digest, self.inputs, self.outputs

        @torch.compiler.allow_in_graph
        def core(params: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            topology = Topology.of(digest)
            fields = dict(zip(given, values, strict=False))
            weights = values[len(given) :]
            worlds = fields["time"].shape
            for name in empty.intersection(layout.STATE):
                fields[name] = params.new_zeros((*inside_shape(topology, name), *worlds))
            d = fn(InsideModel(topology, params, weights), InsideData(fields))
            # What is loaded is contiguous, and so must be what takes its place in the next step.
            return tuple([getattr(d, name).contiguous() for name in wanted])

        def run(params: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            return core(params, *values)

        # Dynamo keeps compiled functions by code object; without guards two pieces must not share one.
        run.__code__ = run.__code__.replace(co_name=f"piece_{next(self._names)}")
        self._options = inductor_options(mode, block)
        self.traced = torch.compile(
            run,
            backend=self._generate,
            fullgraph=True,
            dynamic=False,
            options={"guard_filter_fn": _no_guards},
        )
        self.run: Callable[..., Sequence[Tensor]] = self.traced
        self.weights = m.weights
        self.compiled = False
        self._generated: Callable[..., Sequence[Tensor]] | None = None

    def _generate(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Sequence[Tensor]]:
        """Inductor as the backend of Dynamo, whose result is kept, to be called without Dynamo from then on."""
        self._generated = torch._inductor.compile(graph, inputs, self._options)
        return self._generated

    def __call__(self, params: Tensor, values: Values) -> Values:
        inputs = [values[name] for name in self.inputs]
        if self.compiled:
            return dict(zip(self.outputs, self.run(params, *inputs, *self.weights), strict=True))
        # Dynamo takes two inputs that are one tensor now for one input for ever; a guard would tell.
        outputs = self.run(params, *(x.clone() for x in inputs), *self.weights)
        self.compiled = True
        self.run = self._generated or self.run
        return dict(zip(self.outputs, outputs, strict=True))


def inductor_options(mode: str | None, block: int) -> dict[str, Any]:
    """How Inductor makes a piece of a block of worlds: by the C++ wrapper, one thread, vectors along the worlds.

    Flags of the C++ compiler stay as they are: with others, headers are precompiled once more, for 6 CPU-seconds.
    Sizes of what operators return are not checked at each call: that they are those of the fakes is tested.
    """
    options = dict(torch._inductor.list_mode_options(mode or "default"))
    options |= {"cpp_wrapper": True, "cpp.threads": 1, "size_asserts": False}
    if block % LANES == 0:
        # Worlds fill vectors, so it always pays to make them; to estimate whether it does takes 3 % of a compilation.
        options["cpp.enable_tiling_heuristics"] = False
        # The loop over what is left is generated even where nothing is, which takes 10 % of a compilation.
        options["cpp.enable_loop_tail_vec"] = False
    return options


def _no_guards(guards: Sequence[Any]) -> list[bool]:
    return [False] * len(guards)


def inside_shape(topology: Topology, name: str) -> tuple[int, ...]:
    field = layout.FIELDS[name]
    shape = shape_of(topology, field)
    if field.kind == "vector":
        return shape[1], shape[0]
    if field.kind == "matrix":
        return 9, shape[0]
    return shape
