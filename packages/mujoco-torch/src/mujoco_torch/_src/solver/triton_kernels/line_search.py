"""The exact line search of newton.py for a group of worlds; a Point has tensors (W,)."""

from typing import NamedTuple

import triton
import triton.language as tl

from .cones import evaluate_cones, prepare_cones
from .penalty import clip, squares
from .rows import ROWS, Rows, slots_at
from .tiles import MINVAL, anywhere, floor_at


class Point(NamedTuple):
    """A step, its cost above the start's, and the cost's two derivatives."""

    alpha: tl.tensor
    cost: tl.tensor
    slope: tl.tensor
    curvature: tl.tensor


class Line(NamedTuple):
    """The cost along a search direction: rows with residual and rate, and M's part as a quadratic."""

    rows: Rows
    linear: tl.tensor
    quadratic: tl.tensor


@triton.jit
def evaluate(line, alpha):
    """The point at a step."""
    W: tl.constexpr = alpha.shape[0]
    cost = alpha * (line.linear + alpha * line.quadratic)
    slope = line.linear + 2 * alpha * line.quadratic
    curvature = 2 * line.quadratic
    for first in range(0, line.rows.plain, ROWS):
        at = slots_at(first, W)
        start, rate = tl.load(line.rows.residual + at), tl.load(line.rows.rate + at)
        weight = tl.load(line.rows.weight + at)
        residual = start + alpha[None, :] * rate
        if line.rows.bounded:
            low, high = tl.load(line.rows.low + at), tl.load(line.rows.high + at)
            inside, inside_start = clip(residual, low, high), clip(start, low, high)
            beyond = inside * (residual - inside) - inside_start * (start - inside_start)
            cost += tl.sum(weight * beyond, 0)
            stiff = (residual > low) & (residual < high)
        else:
            inside, inside_start = tl.minimum(residual, 0.0), tl.minimum(start, 0.0)
            stiff = residual < 0
        force = weight * rate
        cost += 0.5 * tl.sum(weight * (inside - inside_start) * (inside + inside_start), 0)
        slope += tl.sum(force * inside, 0)
        curvature += tl.sum(tl.where(stiff, force * rate, 0.0), 0)
    if line.rows.axes > 0:
        more_cost, more_slope, more_curvature = evaluate_cones(line.rows, alpha)
        cost, slope, curvature = cost + more_cost, slope + more_slope, curvature + more_curvature
    return Point(alpha, cost, slope, tl.where(curvature <= 0, tl.full((W,), MINVAL, alpha.dtype), curvature))


@triton.jit
def search_line(line, tolerance, done, limit: tl.constexpr):
    """The point of least cost along the line; the start where `done` or where nothing better is found."""
    W: tl.constexpr = done.shape[0]
    if line.rows.axes > 0:
        prepare_cones(line.rows, W)
    start = evaluate(line, tl.zeros((W,), tolerance.dtype))
    tolerance = _above_rounding(line, start, tolerance)
    first = evaluate(line, _newton_step(start))
    result = _pick(done, start, first)
    evaluations = tl.full((W,), 2, tl.int32)
    searching = ~done & (tl.abs(first.slope) >= tolerance) & (evaluations < limit)
    rising = first.slope < 0

    # Newton steps from one side until the slope changes its sign.
    near, far = first, first
    bracketed = searching & ~searching
    while anywhere(searching):
        trial = evaluate(line, _newton_step(near))
        far = _pick(searching, near, far)
        near = _pick(searching, trial, near)
        evaluations += searching.to(tl.int32)
        result = _pick(searching, near, result)
        going = searching & (tl.abs(near.slope) >= tolerance) & (evaluations < limit)
        searching = going & (tl.where(rising, near.slope, -near.slope) <= -tolerance)
        bracketed = bracketed | (going & ~searching)
    if anywhere(bracketed):
        result = _bracket(line, start, near, far, result, tolerance, bracketed, evaluations, limit)
    return result


@triton.jit
def _above_rounding(line, start, tolerance):
    """The tolerance of the slope, but not below what rounding leaves of it."""
    eps: tl.constexpr = 2.0**-52 if tolerance.dtype == tl.float64 else 2.0**-23
    rows = squares(line.rows, line.rows.residual, tolerance.shape[0])
    terms = tl.sqrt(rows * floor_at(start.curvature - 2 * line.quadratic, 0.0)) + tl.abs(line.linear)
    noise = 8 * eps * terms
    return tl.where(noise > tolerance, noise, tolerance)


@triton.jit
def _bracket(line, start, near, far, result, tolerance, searching, evaluations, limit: tl.constexpr):
    """Shrink the bracket [near, far] by Newton steps from its ends and by its midpoint, where `searching`."""
    near_next, far_next = evaluate(line, _newton_step(near)), near
    evaluations += searching.to(tl.int32)
    exhausted = searching & (evaluations >= limit)
    result = _pick(exhausted, _better(start, near, far), result)
    searching = searching & ~exhausted
    while anywhere(searching):
        middle = evaluate(line, 0.5 * (near.alpha + far.alpha))
        evaluations += searching.to(tl.int32)

        best, converged = _best_converged(near_next, far_next, middle, tolerance)
        result = _pick(searching & converged, best, result)
        searching = searching & ~converged

        near, near_moved = _tighten(near, near_next, far_next, middle)
        far, far_moved = _tighten(far, near_next, far_next, middle)
        stuck = searching & ~near_moved & ~far_moved
        fallback = _pick(middle.cost < start.cost, middle, _better(start, near, far))
        result = _pick(stuck, fallback, result)
        searching = searching & ~stuck

        near_next = _pick(near_moved, evaluate(line, _newton_step(near)), near_next)
        far_next = _pick(far_moved, evaluate(line, _newton_step(far)), far_next)
        evaluations += (searching & near_moved).to(tl.int32) + (searching & far_moved).to(tl.int32)
        exhausted = searching & (evaluations >= limit)
        result = _pick(exhausted, _better(start, near, far), result)
        searching = searching & ~exhausted
    return result


@triton.jit
def _newton_step(point):
    return point.alpha - point.slope / point.curvature


@triton.jit
def _best_converged(a, b, c, tolerance):
    """The cheapest of three points whose slope is below the tolerance, and whether there is one."""
    best, found = a, tl.abs(a.slope) < tolerance
    take = (tl.abs(b.slope) < tolerance) & (~found | (b.cost < best.cost))
    best, found = _pick(take, b, best), found | take
    take = (tl.abs(c.slope) < tolerance) & (~found | (c.cost < best.cost))
    return _pick(take, c, best), found | take


@triton.jit
def _tighten(end, a, b, c):
    """The bracket's end moved to the point of the same sign and least slope, and whether it moved."""
    end, by_a = _closer(end, a)
    end, by_b = _closer(end, b)
    end, by_c = _closer(end, c)
    return end, by_a | by_b | by_c


@triton.jit
def _closer(end, candidate):
    take = ((end.slope < candidate.slope) & (candidate.slope < 0)) | (
        (end.slope > candidate.slope) & (candidate.slope > 0)
    )
    return _pick(take, candidate, end), take


@triton.jit
def _better(start, near, far):
    """The cheaper end of the bracket, or the start where neither lowers the cost."""
    end = _pick(near.cost <= far.cost, near, far)
    return _pick(end.cost < start.cost, end, start)


@triton.jit
def _pick(mask, yes, no):
    return Point(
        tl.where(mask, yes.alpha, no.alpha),
        tl.where(mask, yes.cost, no.cost),
        tl.where(mask, yes.slope, no.slope),
        tl.where(mask, yes.curvature, no.curvature),
    )
