"""Strides of indices in Inductor's C++ backend, without sympy's search for a shorter form."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
import sympy
import torch
from torch import Tensor
from torch._inductor import config
from torch._inductor.codegen import cpp
from torch._inductor.utils import run_and_get_code

# Where the functions are: beside the code generator up to torch 2.12.
sizevars = sys.modules[cpp.stride_at_vec_range.__module__]

D0, D1, D2 = sympy.symbols("d0:3", integer=True, nonnegative=True)
AFFINE = {
    4096 * D0 + 256 * D1 + D2 + 7: (4096, 256, 1),
    256 * D0 + 256 * D1: (256, 256, 0),
    -D0 + 9: (-1, 0, 0),
    D2: (0, 0, 1),
    sympy.Integer(3): (0, 0, 0),
}


def forget() -> None:
    """Inductor remembers what it has worked out."""
    for function in (sizevars.stride_at_vec_range, sizevars.simplify_index_in_vec_range, sizevars.stride_at):
        function.cache_clear()


@pytest.fixture
def simplified(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[sympy.Expr]]:
    """The expressions that `sympy.simplify` was called with."""
    forget()
    simplify, seen = sympy.simplify, []
    monkeypatch.setattr(
        sympy, "simplify", lambda expression: (seen.append(expression), simplify(expression))[1]
    )
    yield seen
    forget()


@pytest.mark.patch("affine-indices")
@pytest.mark.parametrize("index", AFFINE, ids=str)
def test_affine_index_is_not_simplified(index: sympy.Expr, simplified: list[sympy.Expr]):
    assert sizevars.simplify_index_in_vec_range(index, D0, 8) == index
    assert not simplified, f"simplified {simplified}"


@pytest.mark.parametrize("index", AFFINE, ids=str)
def test_strides(index: sympy.Expr):
    forget()
    assert tuple(sizevars.stride_at_vec_range(index, var, 8) for var in (D0, D1, D2)) == AFFINE[index]


def test_other_indices(simplified: list[sympy.Expr]):
    """Divisions by the width of a vector become free variables, as ever; what is not affine is simplified."""
    assert sizevars.stride_at_vec_range(D1 + sizevars.FloorDiv(D0, 16), D0, 16) == 0
    index = D1 + sizevars.FloorDiv(D0, 3)
    sizevars.simplify_index_in_vec_range(index, D0, 16)
    assert index in simplified


def test_generated_code_is_the_same(monkeypatch: pytest.MonkeyPatch):
    def f(x: Tensor) -> Tensor:
        return (
            torch.cat([x[:, ::2].sin(), x.flip(1)[:, :3]], 1).sum(0)
            + x.t().reshape(-1)[:8].view(4, 2).sum(1).max()
        )

    def code(simplify_all: bool) -> str:
        torch._dynamo.reset()
        forget()
        if simplify_all:
            monkeypatch.setattr(sizevars, "_is_affine", lambda index: False, raising=False)
        compiled: Callable = torch.compile(f, fullgraph=True)
        with config.patch({"fx_graph_cache": False, "cpp.vec_isa_ok": True}):
            result, (text,) = run_and_get_code(compiled, torch.arange(40.0).view(4, 10))
        torch.testing.assert_close(result, f(torch.arange(40.0).view(4, 10)))
        return "\n".join(line for line in text.splitlines() if "AOT ID" not in line)

    assert code(simplify_all=False) == code(simplify_all=True)
