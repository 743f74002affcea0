"""Tiles of a group of worlds, and a linear solve in registers.

Worlds are the last dimension of a tile, as of a tensor. A group has W of them; N is the number of dofs, padded to a
power of two. Sums along the first dimension stay within a thread.
"""

import triton
import triton.language as tl

MINVAL = tl.constexpr(1e-15)
"""Smallest pivot, as in linalg.py."""


@triton.jit
def floor_at(x, least: tl.constexpr):
    """The maximum of x and a number; NaN stays."""
    return tl.where(x < least, tl.full(x.shape, least, x.dtype), x)


@triton.jit
def anywhere(mask):
    """Whether a mask (W,) holds in some world."""
    return tl.max(mask.to(tl.int32), 0) != 0


@triton.jit
def dot(x, y):
    """Inner products (W,) of two (N, W)."""
    return tl.sum(x * y, 0)


@triton.jit
def pick_item(x, index):
    """The item (W,) at an index of x (N, W)."""
    return tl.sum(tl.where(tl.arange(0, x.shape[0])[:, None] == index, x, 0.0), 0)


@triton.jit
def vector_at(N: tl.constexpr, W: tl.constexpr):
    """Offsets of a vector (N, W) in the workspace."""
    return tl.arange(0, N)[:, None] * W + tl.arange(0, W)[None, :]


@triton.jit
def matrix_at(N: tl.constexpr, W: tl.constexpr):
    """Offsets of a matrix (N, N, W) in the workspace."""
    row, column = tl.arange(0, N)[:, None, None], tl.arange(0, N)[None, :, None]
    return (row * N + column) * W + tl.arange(0, W)[None, None, :]


@triton.jit
def global_at(item, world, worlds):
    """Offsets of items of a tensor (items, B); `worlds` is B in 64 bits."""
    return item * worlds + world


@triton.jit
def load_vector(source, nv, world, inside, worlds, N: tl.constexpr):
    """A vector (N, W) of a tensor (nv, B), padded with zeros."""
    dof = tl.arange(0, N)[:, None]
    at = global_at(dof, world[None, :], worlds)
    return tl.load(source + at, mask=(dof < nv) & inside[None, :], other=0)


@triton.jit
def store_vector(target, x, nv, world, inside, worlds):
    """A vector (N, W) to a tensor (nv, B)."""
    dof = tl.arange(0, x.shape[0])[:, None]
    tl.store(target + global_at(dof, world[None, :], worlds), x, mask=(dof < nv) & inside[None, :])


@triton.jit
def load_mass(source, element, world, inside, worlds, N: tl.constexpr):
    """The dense M (N, N, W) of the sparse one (nC, B)."""
    row, column = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    e = tl.load(element + row * N + column)[:, :, None]
    at = global_at(e, world[None, None, :], worlds)
    return tl.load(source + at, mask=(e >= 0) & inside[None, None, :], other=0)


@triton.jit
def pick_column(a, index):
    """The column (N, W) of A at an index, and its pivot (W,): the next of the factor A = L D L'."""
    N: tl.constexpr = a.shape[0]
    column = tl.sum(tl.where(tl.arange(0, N)[:, None, None] == index, a, 0.0), 0)
    pivot = floor_at(pick_item(column, index), MINVAL)
    return column, pivot


@triton.jit
def solve_symmetric(a, b, factor, nv):
    """x (N, W) of A x = b, for a symmetric positive definite A (N, N, W), and the pivots (N, W) of its factor.

    `factor` is workspace of the size of A; what is left there solves for other b with the pivots.
    """
    N: tl.constexpr = b.shape[0]
    W: tl.constexpr = b.shape[1]
    dof = tl.arange(0, N)[:, None]
    at = vector_at(N, W)
    pivots = tl.full((N, W), 1, b.dtype)
    tl.debug_barrier()
    for j in range(nv):
        column, pivot = pick_column(a, j)
        column = tl.where(dof > j, column, 0.0)
        unit = column / pivot[None, :]
        a -= column[:, None, :] * unit[None, :, :]
        b -= unit * pick_item(b, j)[None, :]
        pivots = tl.where(dof == j, pivot[None, :], pivots)
        tl.store(factor + j * N * W + at, unit)
    tl.debug_barrier()
    return _substitute_back(b / pivots, factor, nv), pivots


@triton.jit
def solve_factored(b, factor, pivots, nv):
    """x (N, W) of A x = b, with what `solve_symmetric` left of A."""
    at = vector_at(b.shape[0], b.shape[1])
    for j in range(nv):
        b -= tl.load(factor + j * b.shape[0] * b.shape[1] + at) * pick_item(b, j)[None, :]
    return _substitute_back(b / pivots, factor, nv)


@triton.jit
def _substitute_back(b, factor, nv):
    N: tl.constexpr = b.shape[0]
    W: tl.constexpr = b.shape[1]
    dof = tl.arange(0, N)[:, None]
    at = vector_at(N, W)
    for step in range(nv):
        j = nv - 1 - step
        unit = tl.load(factor + j * N * W + at)
        b = tl.where(dof == j, tl.sum(tl.where(dof == j, b, -unit * b), 0)[None, :], b)
    return b
