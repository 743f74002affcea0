"""A sparse constant matrix times items (pattern.py): gathers, and sums along the tree.

A program makes one item of the result for some worlds, from the entries of its row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mujoco_torch._src.pattern import Pattern

from . import launch
from .tables import kept

_WARPS = 4

_WORLDS = 4 * _WARPS * launch.LANES
"""Worlds of a program, four a thread: what it loads at once."""


def combine(x: Tensor, pattern: int) -> Tensor:
    """The operator `combine`."""
    matrix = Pattern.of(pattern)
    rows, columns = matrix.shape
    if x.dim() < 2 or x.shape[-2] != columns:
        raise RuntimeError(f"combine: wrong shape {tuple(x.shape)}, expected (..., {columns}, worlds)")
    worlds = x.shape[-1]
    (x,) = launch.contiguous(x)
    out = x.new_empty((*x.shape[:-2], rows, worlds))
    if out.numel():
        start, column, value = kept(matrix, (x.dtype, x.device), lambda: _entries(matrix, x))
        with launch.on_device(x):
            combine_kernel[(out.numel() // worlds, triton.cdiv(worlds, _WORLDS))](
                x, out, start, column, value, worlds, rows, columns, W=_WORLDS, num_warps=_WARPS,
                enable_fp_fusion=True,
            )  # fmt: skip
    return out


def _entries(matrix: Pattern, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where the entries of each row start, then their number; the column, and the value of each."""
    row, column, value = zip(*matrix.entries, strict=True) if matrix.entries else ((), (), ())
    counts = torch.bincount(torch.tensor(row, dtype=torch.int64), minlength=matrix.shape[0])
    start = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    start, column = (torch.as_tensor(x, dtype=torch.int32).to(like.device) for x in (start, column))
    return start, column, torch.tensor(value, dtype=torch.float64).to(like)


@triton.jit(do_not_specialize=["rows", "columns"])
def combine_kernel(x, out, start, column, value, worlds: tl.int64, rows, columns, W: tl.constexpr):
    """Item i of the result: the sum over the entries e of row i of value[e] x[column[e]]."""
    item = tl.program_id(0).to(tl.int64)
    world = tl.program_id(1).to(tl.int64) * W + tl.arange(0, W)
    inside = world < worlds
    row = item % rows
    source = x + item // rows * columns * worlds + world
    total = tl.zeros((W,), out.dtype.element_ty)
    for e in range(tl.load(start + row), tl.load(start + row + 1)):
        part = tl.load(source + tl.load(column + e) * worlds, mask=inside, other=0)
        total += tl.load(value + e) * part
    tl.store(out + item * worlds + world, total, mask=inside)
