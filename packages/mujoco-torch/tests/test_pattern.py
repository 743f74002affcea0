"""Sparse constant matrices against dense ones, on the kernel and on the reference."""

import gc
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mujoco_torch._src import pattern as pattern_module
from mujoco_torch._src.components import Components
from mujoco_torch._src.ops import prepare
from mujoco_torch._src.pattern import Pattern, content_key

property_test = settings(max_examples=60, deadline=None, derandomize=True, database=None)

# Sums of at most seven products of numbers of order 1, in another order.
TOLERANCE = {torch.float64: dict(rtol=1e-13, atol=1e-13), torch.float32: dict(rtol=1e-5, atol=1e-5)}

BATCHES = (1, 7, 8, 9, 33)
"""Below, at and above the width of a register."""


def reference(matrix: Pattern, x: Tensor) -> Tensor:
    return pattern_module._reference(x, matrix.key)


def operator(matrix: Pattern, x: Tensor) -> Tensor:
    return matrix @ x


RUNS: list[Callable[[Pattern, Tensor], Tensor]] = [operator, reference]

both = pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    """Small matrices, mostly of zeros: selections, sums, signs, other values, empty rows, no rows at all."""
    rows, columns = draw(st.integers(0, 7)), draw(st.integers(0, 7))
    value = st.sampled_from([0.0, 0.0, 0.0, 1.0, -1.0, 0.5, 2.75, 1e-3])
    numbers = draw(st.lists(value, min_size=rows * columns, max_size=rows * columns))
    return np.array(numbers, dtype=float).reshape(rows, columns)


def example(rows: int = 5, columns: int = 4, seed: int = 0) -> np.ndarray:
    """About half of the numbers are zero, one row is, and the first column holds nothing but 1."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.6)
    matrix[:, 0], matrix[rows // 2] = 1.0, 0.0
    return matrix


def random(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)), dtype=torch.float64).to(
        dtype
    )


# ------------------------------------------------------------------------------------------- values


@both
@property_test
@given(
    matrix=matrices(),
    lead=st.lists(st.integers(0, 3), max_size=3),
    worlds=st.sampled_from([0, *BATCHES]),
    dtype=st.sampled_from(list(TOLERANCE)),
)
def test_equals_the_dense_product(
    run: Callable, matrix: np.ndarray, lead: list[int], worlds: int, dtype: torch.dtype
) -> None:
    x = random(*lead, matrix.shape[1], worlds, dtype=dtype)
    out = run(Pattern.of_matrix(matrix), x)
    assert out.dtype == dtype
    assert out.is_contiguous()
    assert out.shape == (*lead, matrix.shape[0], worlds)
    torch.testing.assert_close(out, torch.as_tensor(matrix, dtype=dtype) @ x, **TOLERANCE[dtype])


@property_test
@given(matrices())
def test_dense_and_transposed(matrix: np.ndarray) -> None:
    sparse = Pattern.of_matrix(matrix)
    like = torch.zeros((), dtype=torch.float32)
    assert torch.equal(sparse.dense(like), torch.as_tensor(matrix, dtype=torch.float32))
    assert torch.equal(sparse.T.dense(like), torch.as_tensor(matrix.T, dtype=torch.float32))
    assert sparse.T.T is sparse


@both
def test_a_selection_copies(run: Callable) -> None:
    """Values of 1 move numbers as they are, also those that are not finite, and touch no others."""
    x = random(3, 9)
    x[1, 4], x[2, 0] = torch.inf, torch.nan
    select = Pattern([(0, 0, 1), (2, 0, 1)], (3, 3))
    if run is operator:  # a dense product meets the other items, times zero
        assert torch.equal(run(select, x), torch.stack([x[0], torch.zeros(9, dtype=x.dtype), x[0]]))
    clean = x.nan_to_num(0.0, 0.0, 0.0)
    assert torch.equal(run(select, clean), torch.stack([x[0], torch.zeros(9, dtype=x.dtype), x[0]]))


def test_the_order_of_entries_does_not_matter() -> None:
    entries = [(0, 1, 2.0), (2, 0, 1.0), (0, 0, -1.0)]
    assert Pattern(entries, (3, 2)) is Pattern(entries[::-1], (3, 2))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_worlds_do_not_see_each_other(dtype: torch.dtype) -> None:
    """A world's numbers are the same, to the last bit, whatever the batch."""
    sparse, x = Pattern.of_matrix(example()), random(4, max(BATCHES), dtype=dtype)
    whole = sparse @ x
    for worlds in BATCHES:
        assert torch.equal(sparse @ x[:, :worlds].contiguous(), whole[:, :worlds])


@both
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_any_strides(run: Callable, dtype: torch.dtype) -> None:
    sparse, x = Pattern.of_matrix(example()), random(3, 4, 9, dtype=dtype)
    expected = run(sparse, x)
    for strided in (
        x.movedim(-1, 0).contiguous().movedim(0, -1),
        x.repeat_interleave(2, -1)[..., ::2],
        x.transpose(0, 1).contiguous().transpose(0, 1),
    ):
        assert not strided.is_contiguous()
        torch.testing.assert_close(run(sparse, strided), expected, rtol=0, atol=0)
    torch.testing.assert_close(
        run(sparse, x[:1].expand(3, 4, 9)), expected[:1].expand(3, 5, 9), rtol=0, atol=0
    )


def test_components_are_stacked() -> None:
    sparse, x = Pattern.of_matrix(example()), random(3, 4, 9)
    assert torch.equal(sparse @ Components(x), sparse @ x)


def test_threads_give_the_same_numbers() -> None:
    sparse, x = Pattern.of_matrix(example(40, 30)), random(6, 30, 4000)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = sparse @ x
        torch.set_num_threads(3)
        three = sparse @ x
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, three)


# ------------------------------------------------------------------------------------------- the value


def test_interned_by_value() -> None:
    matrix = example()
    sparse = Pattern.of_matrix(matrix)
    assert Pattern.of_matrix(matrix.copy()) is sparse
    assert Pattern.of(sparse.key) is sparse
    others = [
        Pattern.of_matrix(2 * matrix),
        Pattern(sparse.entries[1:], sparse.shape),
        Pattern(sparse.entries, (6, 4)),
        Pattern(sparse.entries, (5, 5)),
        sparse.T,
    ]
    assert len({sparse.key, *(other.key for other in others)}) == len(others) + 1


def test_known_while_somebody_holds_it() -> None:
    key = Pattern([(0, 0, 0.123456)], (1, 1)).key
    gc.collect()
    with pytest.raises(KeyError):
        Pattern.of(key)
    again = Pattern([(0, 0, 0.123456)], (1, 1))
    assert again.key == key
    assert torch.equal(again @ torch.ones(1, 3), torch.full((1, 3), 0.123456))


def test_pickled() -> None:
    sparse = Pattern.of_matrix(example())
    copy = pickle.loads(pickle.dumps(sparse))
    assert copy is sparse
    data = pickle.dumps(Pattern([(0, 1, 7.5), (1, 0, 1)], (2, 2)))
    gc.collect()
    assert torch.equal(pickle.loads(data) @ torch.ones(2, 2), torch.tensor([[7.5, 7.5], [1.0, 1.0]]))


def test_keys_are_the_same_in_every_process() -> None:
    """They are stored in compiled graphs, and a cache of those outlives a process."""
    assert Pattern([(0, 1, 2.0), (2, 0, 1.0)], (3, 2)).key == content_key(
        (((0, 1, 2.0), (2, 0, 1.0)), (3, 2))
    )
    assert content_key("mujoco") == 0x7D64968ABFA24C68
    assert 0 <= content_key(0) < 2**63


def test_repr() -> None:
    sparse = Pattern.of_matrix(example())
    assert repr(sparse) == f"Pattern(5x4, key={sparse.key})"


# ------------------------------------------------------------------------------------------- transforms


@property_test
@given(matrices(), st.lists(st.integers(1, 2), max_size=2))
def test_gradient_is_the_transposed_product(matrix: np.ndarray, lead: list[int]) -> None:
    sparse = Pattern.of_matrix(matrix)
    x = random(*lead, matrix.shape[1], 3).requires_grad_()
    grad = random(*lead, matrix.shape[0], 3)
    (sparse @ x).backward(grad)
    torch.testing.assert_close(x.grad, torch.as_tensor(matrix.T) @ grad, **TOLERANCE[torch.float64])


def test_gradients() -> None:
    sparse, x = Pattern.of_matrix(example()), random(2, 4, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: sparse @ x, (x,))
    assert torch.autograd.gradgradcheck(lambda x: (sparse @ x) ** 2, (x,))
    with torch.no_grad():
        assert not (sparse @ x).requires_grad


def test_gradient_after_the_matrix_is_let_go() -> None:
    """As when a function makes a model, steps it and returns a loss."""
    x = random(1, 3).requires_grad_()
    loss = (Pattern([(0, 0, 0.654321)], (1, 1)) @ x).sum()
    gc.collect()
    loss.backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 0.654321))


def test_func_transforms() -> None:
    matrix, x = example(), random(4, 3)
    sparse = Pattern.of_matrix(matrix)
    dense = torch.as_tensor(matrix)

    def cubed(apply: Callable) -> Callable:
        return lambda x: (apply(x) ** 3).sum()

    ours, theirs = cubed(lambda x: sparse @ x), cubed(lambda x: dense @ x)
    torch.testing.assert_close(torch.func.grad(ours)(x), torch.func.grad(theirs)(x))
    torch.testing.assert_close(
        torch.func.jacrev(lambda x: sparse @ x)(x), torch.func.jacrev(lambda x: dense @ x)(x)
    )
    double = torch.func.jacrev(torch.func.grad(ours))(x)
    torch.testing.assert_close(double, torch.func.jacrev(torch.func.grad(theirs))(x))


@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1])
def test_vmap(dim: int) -> None:
    sparse, x = Pattern.of_matrix(example()), random(6, 3, 4, 9)
    expected = torch.stack([sparse @ one for one in x])
    assert torch.equal(torch.vmap(lambda x: sparse @ x, in_dims=dim)(x.movedim(0, dim)), expected)


def test_vmap_of_vmap_and_of_grad() -> None:
    sparse, x = Pattern.of_matrix(example()), random(2, 6, 4, 3)
    twice = torch.vmap(torch.vmap(lambda x: sparse @ x), in_dims=1, out_dims=1)(x)
    assert torch.equal(twice, sparse @ x)

    def loss(x: Tensor) -> Tensor:
        return ((sparse @ x) ** 2).sum()

    (expected,) = torch.autograd.grad(loss(x.requires_grad_()), x)
    x = x.detach()
    torch.testing.assert_close(torch.vmap(torch.vmap(torch.func.grad(loss)))(x), expected)
    torch.testing.assert_close(torch.func.grad(lambda x: torch.vmap(loss)(x).sum())(x), expected)


def test_opcheck() -> None:
    prepare()
    sparse = Pattern.of_matrix(example())
    for x in (random(4, 3), random(2, 4, 3).float(), random(9, 4).T):
        torch.library.opcheck(torch.ops.mujoco_torch.combine.default, (x, sparse.key))


def test_compiled() -> None:
    """Inside a function that Dynamo does not look into, as stages are."""
    sparse, x = Pattern.of_matrix(example()), random(4, 9).requires_grad_()

    @torch.compiler.allow_in_graph
    def product(x: Tensor) -> Tensor:
        return sparse @ x

    def loss(x: Tensor) -> Tensor:
        return (product(x) ** 2).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), loss(x))
    for a, b in zip(torch.autograd.grad(compiled(x), x), torch.autograd.grad(loss(x), x), strict=True):
        torch.testing.assert_close(a, b)


# ------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("size", [(3, 9), (5, 9), (4,), (4, 9, 1)], ids=str)
def test_refuses_a_shape_that_does_not_fit(size: tuple[int, ...]) -> None:
    sparse = Pattern.of_matrix(example())
    with pytest.raises(RuntimeError, match="combine: wrong shape"):
        sparse @ torch.zeros(size)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.bool], ids=str)
def test_refuses_a_dtype_without_a_kernel(dtype: torch.dtype) -> None:
    sparse = Pattern.of_matrix(example())
    with pytest.raises(RuntimeError, match="must be float32 or float64"):
        sparse @ torch.zeros((4, 9), dtype=dtype)


def test_refuses_an_unknown_matrix() -> None:
    prepare()
    with pytest.raises(RuntimeError, match="given an unknown structure"):
        torch.ops.mujoco_torch.combine.default(torch.zeros(4, 9), 1)


@pytest.mark.parametrize("worlds", [1, 3])
def test_a_gathered_zero_keeps_its_sign(worlds: int) -> None:
    gathered = Pattern([(0, 1, 1)], (2, 2)) @ torch.full((2, worlds), -0.0)
    assert gathered.signbit().tolist() == [[True] * worlds, [False] * worlds]
