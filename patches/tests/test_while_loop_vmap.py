"""`torch.while_loop` under `torch.vmap`: every element ends on its own, values and gradients as in a Python loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.patch("while-loop-vmap")

STARTS = torch.tensor([[0.1, 0.1, 0.1], [1.0, 1.0, 1.0], [5.0, 5.0, 5.0], [0.01, 0.02, 0.03]])
FACTORS = torch.tensor([1.5, 2.0, 1.1, 1.7])


def grow(x: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Multiplies until the sum is 10, counting."""

    def goes_on(count: Tensor, x: Tensor) -> Tensor:
        return (x.sum() < 10) & (count < 100)

    def step(count: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return count + 1, x * factor

    return torch.while_loop(goes_on, step, (torch.zeros((), dtype=torch.int64), x))


def grow_in_python(x: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    count = 0
    while x.sum() < 10 and count < 100:
        count, x = count + 1, x * factor
    return torch.tensor(count), x


def one_by_one(starts: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    pairs = [grow_in_python(x, factor) for x, factor in zip(starts, factors, strict=True)]
    return torch.stack([count for count, _ in pairs]), torch.stack([x for _, x in pairs])


def compiled(backend: str | None, f: Callable) -> Callable:
    return f if backend is None else torch.compile(f, fullgraph=True, backend=backend)


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager", "inductor"])
def test_values(backend: str | None):
    count, x = compiled(backend, torch.vmap(grow))(STARTS, FACTORS)
    expected_count, expected_x = one_by_one(STARTS, FACTORS)
    assert count.tolist() == expected_count.tolist()
    assert len(set(count.tolist())) > 1
    torch.testing.assert_close(x, expected_x)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_gradients(backend: str | None):
    inputs = [STARTS.clone().requires_grad_(), FACTORS.clone().requires_grad_()]
    expected = torch.autograd.grad(one_by_one(*inputs)[1].square().sum(), inputs)
    got = torch.autograd.grad(compiled(backend, torch.vmap(grow))(*inputs)[1].square().sum(), inputs)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_unbatched_capture_and_other_dimension(backend: str | None):
    f = torch.vmap(grow, in_dims=(1, None), out_dims=(0, 1))
    count, x = compiled(backend, f)(STARTS.T.contiguous(), FACTORS[0])
    expected_count, expected_x = one_by_one(STARTS, FACTORS[:1].expand(4))
    assert count.tolist() == expected_count.tolist()
    torch.testing.assert_close(x, expected_x.T)


def test_unbatched_start():
    count, x = torch.vmap(grow, in_dims=(None, 0))(STARTS[0], FACTORS)
    expected_count, expected_x = one_by_one(STARTS[:1].expand(4, 3), FACTORS)
    assert count.tolist() == expected_count.tolist()
    torch.testing.assert_close(x, expected_x)


def test_nested():
    count, _ = torch.vmap(torch.vmap(grow, in_dims=(None, 0)), in_dims=(0, None))(STARTS, FACTORS)
    expected = [one_by_one(start.expand(4, 3), FACTORS)[0].tolist() for start in STARTS]
    assert count.tolist() == expected


def test_condition_that_is_carried():
    def until_large(x: Tensor) -> Tensor:
        start = (x < 8, x.clone())
        return torch.while_loop(lambda small, x: small.clone(), lambda small, x: (x < 4, 2 * x), start)[1]

    assert torch.vmap(until_large)(torch.tensor([1.0, 3.0, 9.0])).tolist() == [8.0, 12.0, 9.0]


def test_an_element_that_ended_is_not_changed_by_what_the_body_would_make_of_it():
    def halve(x: Tensor) -> Tensor:
        return torch.while_loop(lambda x: x > 1, lambda x: (1 / (1 / x - (x <= 1) / x) / 2,), (x,))[0]

    got = torch.vmap(halve)(torch.tensor([8.0, 1.0, 0.5]))
    assert got.tolist() == [1.0, 1.0, 0.5]
