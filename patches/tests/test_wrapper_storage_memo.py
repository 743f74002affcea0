"""Wrapper subclasses whose storage is that of their payload, compiled: tensordict's `UnbatchedTensor` is one."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorClass, UnbatchedTensor
from torch import Tensor
from torch.utils._pytree import tree_map_only

pytestmark = pytest.mark.patch("wrapper-storage-memo")


class Wrapper(Tensor):
    """Passes every operation on to its payload."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, payload: Tensor) -> Wrapper:
        self = Tensor._make_wrapper_subclass(
            cls, payload.shape, dtype=payload.dtype, device=payload.device, strides=payload.stride()
        )
        self.payload = payload
        return self

    def __repr__(self) -> str:
        return f"Wrapper({self.payload})"

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.payload.untyped_storage()

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["payload"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], *_: object) -> Wrapper:
        return cls(inner["payload"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        unwrapped = tree_map_only(Wrapper, lambda x: x.payload, (args, kwargs or {}))
        return tree_map_only(Tensor, Wrapper, function(*unwrapped[0], **unwrapped[1]))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_wrapper_as_input(backend: str):
    got = torch.compile(lambda w: w * 2, fullgraph=True, backend=backend)(Wrapper(torch.ones(3)))
    assert got.payload.tolist() == [2.0] * 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_unbatched_wrapper_in_vmap(backend: str):
    f = torch.vmap(lambda w, x: (w * x).sum(), in_dims=(None, 0))
    x = torch.arange(6.0).view(2, 3)
    got = torch.compile(f, fullgraph=True, backend=backend)(Wrapper(torch.ones(3)), x)
    assert got.payload.tolist() == x.sum(1).tolist()


class Entries(TensorClass["nocast"]):
    """One batched entry and one that is not."""

    a: Tensor
    u: Tensor


def entries() -> Entries:
    return Entries(a=torch.arange(6.0).view(2, 3), u=UnbatchedTensor(torch.ones(4)), batch_size=(2,))


def test_reduction_of_an_unbatched_entry_with_a_batched_one():
    f = torch.vmap(lambda e: e.a.sum() + e.u.sum())
    got = torch.compile(f, fullgraph=True, backend="aot_eager")(entries())
    assert got.tolist() == [7.0, 16.0]


@pytest.mark.parametrize("name", ["getattr", "clone", "index"])
def test_unbatched_entry(name: str):
    f = {"getattr": lambda e: e.u.sum(), "clone": lambda e: e.clone().u, "index": lambda e: e[0].u}[name]
    got = torch.compile(f, fullgraph=True, backend="aot_eager")(entries())
    assert got.tolist() == f(entries()).tolist()
