"""Gradients of a compiled `torch.vmap(scan)`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

BATCH, LENGTH, WIDTH = 7, 5, 3
IN_DIMS = [(0, 0, None), (0, None, 0), (1, 2, 1)]


def accumulate(start: Tensor, xs: Tensor, factor: Tensor) -> Tensor:
    def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        carry = torch.sin(carry) * factor + x
        return carry, carry * 2

    last, ys = scan(step, start, xs)
    return torch.cat([ys, last[None]])


def accumulate_in_python(start: Tensor, xs: Tensor, factor: Tensor) -> Tensor:
    carry, ys = start, []
    for x in xs:
        carry = torch.sin(carry) * factor + x
        ys.append(carry * 2)
    return torch.stack([*ys, carry])


def inputs(in_dims: tuple[int | None, ...]) -> list[Tensor]:
    shapes = ((WIDTH,), (LENGTH, WIDTH), (WIDTH,))
    generator = torch.Generator().manual_seed(1)

    def batched(shape: tuple[int, ...], dim: int | None) -> Tensor:
        whole = list(shape)
        if dim is not None:
            whole.insert(dim, BATCH)
        return torch.randn(whole, generator=generator, dtype=torch.float64).requires_grad_()

    return [batched(shape, dim) for shape, dim in zip(shapes, in_dims, strict=True)]


@pytest.mark.patch("scan-vmap-gradient")
@pytest.mark.parametrize("in_dims", IN_DIMS)
def test_gradients_compiled(in_dims: tuple[int | None, ...]):
    arguments = inputs(in_dims)
    expected = torch.vmap(accumulate_in_python, in_dims)(*arguments)
    got = torch.compile(torch.vmap(accumulate, in_dims), fullgraph=True, backend="aot_eager")(*arguments)
    torch.testing.assert_close(got, expected)
    gradients = [torch.autograd.grad(y.square().sum(), arguments) for y in (got, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("in_dims", IN_DIMS)
def test_gradients_eager(in_dims: tuple[int | None, ...]):
    arguments = inputs(in_dims)
    outputs = [torch.vmap(f, in_dims)(*arguments) for f in (accumulate, accumulate_in_python)]
    gradients = [torch.autograd.grad(y.square().sum(), arguments) for y in outputs]
    torch.testing.assert_close(*gradients)
