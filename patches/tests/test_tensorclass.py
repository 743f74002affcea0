"""What Dynamo makes of a TensorClass: guards of a read and of a store, operations of a clone, constructors."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest
import torch
from tensordict import TensorClass, TensorDict, UnbatchedTensor, is_tensorclass
from torch import Tensor
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

FIELDS = 20
NAMES = [f"f{i}" for i in range(FIELDS)]


def tensorclass(option: str) -> type:
    annotations = {"__annotations__": dict.fromkeys(NAMES, Tensor), "__module__": __name__}
    return types.new_class(
        "Fields", (TensorClass[option],), {}, lambda namespace: namespace.update(annotations)
    )


def graph_and_guards(f: Callable, data: TensorClass) -> tuple[torch.fx.Graph, int]:
    """The one graph of a function of a TensorClass, and the guards of its frame."""
    graphs: list[torch.fx.Graph] = []

    def backend(module: torch.fx.GraphModule, inputs: list) -> Callable:
        graphs.append(module.graph)
        return module.forward

    clear_compilation_metrics()
    torch.compile(f, fullgraph=True, backend=backend)(data)
    (graph,) = graphs
    return graph, get_compilation_metrics()[-1].guard_count


def sum_of(fields: int) -> Callable[[TensorClass], Tensor]:
    """A function of its own code that reads so many fields."""
    namespace: dict = {}
    exec(f"def read(d): return {' + '.join(f'd.{name}' for name in NAMES[:fields])}", namespace)
    return namespace["read"]


@pytest.mark.patch("field-guards")
def test_guards_of_a_read():
    """Two guards a field: its tensor, and the code of its getter."""
    Fields = tensorclass("tensor_only")
    data = Fields(**{name: torch.rand(4) for name in NAMES}, batch_size=[4])
    few, many = (graph_and_guards(sum_of(count), data)[1] for count in (10, FIELDS))
    guards = (many - few) / (FIELDS - 10)
    # torch 2.11 guards besides that the object has no attribute of its own of that name.
    assert guards <= (3 if torch.__version__ < (2, 12) else 2), f"{guards} guards a field"


def test_reads_are_right():
    Fields = tensorclass("tensor_only")
    data = Fields(**{name: torch.full((4,), float(i)) for i, name in enumerate(NAMES)}, batch_size=[4])
    for i, name in enumerate(NAMES):
        assert getattr(data, name).tolist() == [float(i)] * 4
    data.f3 = torch.full((4,), -1.0)
    assert data.f3.tolist() == [-1.0] * 4
    partly = Fields.from_tensordict(TensorDict(f0=torch.ones(4), batch_size=[4]))
    assert partly.f1 is None
    with pytest.raises(AttributeError):
        data.f99  # noqa: B018


@pytest.mark.patch("unbatched-clone")
def test_operations_of_a_clone():
    Fields = tensorclass("nocast")
    data = Fields(**{name: UnbatchedTensor(torch.rand(3)) for name in NAMES}, batch_size=[4])
    graph, _ = graph_and_guards(lambda d: d.clone(), data)
    operations = sum(node.op.startswith("call") for node in graph.nodes)
    assert operations == FIELDS, f"{operations} operations for {FIELDS} entries"


def test_clone_is_right():
    Fields = tensorclass("nocast")
    data = Fields(**{name: UnbatchedTensor(torch.rand(3)) for name in NAMES}, batch_size=[4])
    clone = torch.compile(lambda d: d.clone(), fullgraph=True, backend="eager")(data)
    assert clone.f0.tolist() == data.f0.tolist()
    assert clone.f0.data_ptr() != data.f0.data_ptr()
    assert clone.f0.batch_size == data.clone().f0.batch_size == torch.Size([4])
    assert clone.batch_size == data.batch_size


class Inner(TensorClass["tensor_only"]):
    p: Tensor


class Outer(TensorClass["tensor_only"]):
    a: Tensor
    b: Tensor
    n: Inner = None


CONSTRUCTORS: dict[str, Callable[[Tensor], TensorClass]] = {
    "keywords": lambda x: Outer(a=x, b=x, batch_size=[2]),
    "positions": lambda x: Outer(x, x, batch_size=[2]),
    "nested": lambda x: Outer(a=x, b=x, n=Inner(p=x, batch_size=[2]), batch_size=[2]),
    "device and names": lambda x: Outer(a=x, b=x, batch_size=x.shape[:1], device=x.device, names=["world"]),
    "replace": lambda x: Outer(a=x, b=x, batch_size=[2]).replace(a=x + 1),
    "stack": lambda x: torch.stack([Outer(a=x, b=x, batch_size=[2])] * 2),
    "in vmap": torch.vmap(lambda x: Outer(a=x, b=x, n=Inner(p=x, batch_size=[]), batch_size=[])),
}
MAKERS: dict[str, Callable[[Tensor], TensorClass]] = {
    "from_dict": lambda x: Outer.from_dict({"a": x, "b": x}, batch_size=[2]),
    "from_tensordict": lambda x: Outer.from_tensordict(TensorDict(a=x, b=x, batch_size=[2])),
}


def compiles_to_the_same(construct: Callable[[Tensor], TensorClass]) -> None:
    x = torch.arange(6.0).view(2, 3)
    got = torch.compile(construct, fullgraph=True, backend="aot_eager")(x)
    assert (got == construct(x)).all()


@pytest.mark.patch("constructors")
@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_constructors(name: str):
    compiles_to_the_same(CONSTRUCTORS[name])


@pytest.mark.parametrize("name", MAKERS)
def test_makers(name: str):
    """These need no patch."""
    compiles_to_the_same(MAKERS[name])


@pytest.mark.patch("class-memo")
def test_a_class_that_is_met_later():
    """Nothing that the function reads has changed."""

    def f(x: Tensor) -> Tensor:
        inner = Inner.from_tensordict(TensorDict(p=x, batch_size=[2]))
        return Outer.from_tensordict(TensorDict(a=x, b=x, n=inner, batch_size=[2])).n.p

    compiled = torch.compile(f, fullgraph=True, backend="eager")
    clear_compilation_metrics()
    compiled(torch.ones(2))
    is_tensorclass(type("Later", (), {}))
    compiled(torch.ones(2))
    reasons = [record.recompile_reason for record in get_compilation_metrics()]
    assert reasons == [None], f"compiled again: {reasons}"
