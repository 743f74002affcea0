"""What crosses the borders of CUDA graph partitions around operations that return several tensors.

Partitions are forced on a CPU: Inductor is told that every node is on a GPU, and to wrap every partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._inductor import config, utils
from torch._inductor.scheduler import BaseSchedulerNode


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[type]]]:
    """The types of the inputs of every partition that ran."""
    seen: list[list[type]] = []

    def recorded(fn: Callable, metadata: object) -> Callable:
        def run(inputs: list) -> object:
            seen.append([type(value) for value in inputs])
            return fn(inputs)

        return run

    monkeypatch.setattr(BaseSchedulerNode, "is_gpu", lambda self: True)
    utils.set_customized_partition_wrappers(recorded)
    with config.patch(
        {"graph_partition": True, "fx_graph_cache": False, "cpp.simdlen": 1, "cpp.vec_isa_ok": True}
    ):
        yield seen
    utils.set_customized_partition_wrappers(None)


def around_while_loop(x: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
    y = torch.sin(x) * factor
    count, y, z = torch.while_loop(
        lambda count, y, z: (y.sum() < 10) & (count < 50),
        lambda count, y, z: (count + 1, y * 1.2 + factor, z + 1),
        (torch.zeros((), dtype=torch.int64), y, x.clone()),
    )
    return torch.cos(y) + count, z * 2, x


def around_operator(x: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
    low, high = torch.ops.patched_tests.halves(torch.sin(x) * factor)
    return torch.cos(low) + factor, high * 2


@torch.library.custom_op("patched_tests::halves", mutates_args=(), tags=(torch._C.Tag.cudagraph_unsafe,))
def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """An operation that must not run inside of a CUDA graph."""
    return x / 2, x - x / 2


@halves.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def partitions_take_tensors_only(f: Callable, crossed: list[list[type]]) -> None:
    x, factor = torch.rand(4), torch.rand(4)
    got = torch.compile(f, fullgraph=True)(x, factor)
    torch.testing.assert_close(got, f(x, factor))
    assert len(crossed) == 2
    for types in crossed:
        assert not {list, tuple} & set(types), f"a partition takes a list: {types}"


@pytest.mark.patch("partition-lists")
def test_while_loop(crossed: list[list[type]]):
    partitions_take_tensors_only(around_while_loop, crossed)


def test_operator(crossed: list[list[type]]):
    """Its outputs are unpacked outside of the partitions on released versions, too."""
    partitions_take_tensors_only(around_operator, crossed)
