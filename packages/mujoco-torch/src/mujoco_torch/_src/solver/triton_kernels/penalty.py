"""What rows cost, and their forces: penalty.py. Rows by themselves here, those of elliptic cones in cones.py."""

import triton
import triton.language as tl

from .cones import add_bending, pull_cones, squares_of_cones
from .rows import ROWS, jac_at, slots_at


@triton.jit
def within(rows, at, residual):
    """Residuals within the bounds of their forces."""
    if rows.bounded:
        inside = clip(residual, tl.load(rows.low + at), tl.load(rows.high + at))
    else:
        inside = tl.minimum(residual, 0.0)
    return inside


@triton.jit
def clip(x, low, high):
    """x between two bounds; NaN stays."""
    return tl.where(x < low, low, tl.where(x > high, high, x))


@triton.jit
def pull(rows, N: tl.constexpr, W: tl.constexpr):
    """J' D p (N, W): minus the rows' joint forces."""
    total = tl.zeros((N, W), rows.jac.dtype.element_ty)
    for first in range(0, rows.plain, ROWS):
        at = slots_at(first, W)
        force = tl.load(rows.weight + at) * within(rows, at, tl.load(rows.residual + at))
        total += tl.sum(tl.load(rows.jac + jac_at(first, N, W)) * force[:, None, :], 0)
    if rows.axes > 0:
        total += pull_cones(rows, N, W)
    return total


@triton.jit
def squares(rows, residual, W: tl.constexpr):
    """Twice the cost (W,) of all rows at residuals."""
    total = tl.zeros((W,), rows.jac.dtype.element_ty)
    for first in range(0, rows.plain, ROWS):
        at = slots_at(first, W)
        x = tl.load(residual + at)
        inside = within(rows, at, x)
        twice = tl.load(rows.weight + at) * inside
        if rows.bounded:  # beyond its bounds a row's cost is linear
            total += tl.sum(twice * (2 * x - inside), 0)
        else:
            total += tl.sum(twice * inside, 0)
    if rows.axes > 0:
        total += squares_of_cones(rows, residual, W)
    return total


@triton.jit
def add_stiffness(rows, a):
    """A + J' S J (N, N, W), with S the second derivative of the cost."""
    N: tl.constexpr = a.shape[0]
    W: tl.constexpr = a.shape[2]
    lane = tl.arange(0, W)
    for slot in range(rows.plain):
        residual = tl.load(rows.residual + slot * W + lane)
        weight = tl.load(rows.weight + slot * W + lane)
        jac = tl.load(rows.jac + slot * N * W + tl.arange(0, N)[:, None] * W + lane[None, :])
        if rows.bounded:
            low, high = tl.load(rows.low + slot * W + lane), tl.load(rows.high + slot * W + lane)
            stiff = (residual > low) & (residual < high)
        else:
            stiff = residual < 0
        scaled = tl.where(stiff, weight, 0.0)[None, :] * jac
        a += scaled[:, None, :] * jac[None, :, :]
    if rows.axes > 0:
        a = add_bending(rows, a)
    return a
