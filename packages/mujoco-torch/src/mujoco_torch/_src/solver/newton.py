"""Newton's method and conjugate gradients for the constrained acceleration, worlds last, in plain torch.

The cost of an acceleration a is 1/2 (a - a_s)' M (a - a_s) plus that of the residuals J a - aref of all rows
(penalty.py): the primal problem of MuJoCo. The algorithm follows MuJoCo C 4.0 (engine_solver.c, and "Solver" in the
computation chapter of its manual): warm start, exact line search, Newton steps with the full Hessian or conjugate
directions with M as preconditioner. Iteration counts agree with C's on single-island models.

Departures from MuJoCo C:
1. Costs are differences from the start of the line search, summed row by row, so float32 keeps its digits.
2. The line search accepts a slope below 8 eps times the size of its terms: a smaller one is rounding.
3. A midpoint that does not lower the cost is not taken when the bracket cannot shrink; the better end, or zero, is.
4. Trees that no constraint can ever join are solved one by one (parts.py), others together; where C splits worlds into
   islands as they are, each has a scale and an iteration count of its own.
5. A world whose numbers are not finite stops at once instead of using up its iterations.
"""

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from mujoco_torch._src.enums import SolverType

from .arguments import Arguments
from .linalg import MINVAL, chol_factor, chol_solve, hessian
from .mass import full_m
from .parts import by_parts
from .penalty import Penalty, make_penalty
from .rows import make_rows
from .system import System

BLOCK = 512
"""Worlds per call on a CPU: one block's Jacobian (100 rows, 27 dofs, float64) is 11 MB, a batch of 4,096 is 88 MB."""

_SLOPE_NOISE = 8.0
_HAGER_ZHANG = 0.01
"""eta of the bound from below of the conjugate direction, as Hager and Zhang chose it."""

_T = TypeVar("_T", bound=tuple)


class Problem(NamedTuple):
    """What defines the cost in each world; the last dimension of every tensor is the world."""

    mass: Tensor
    jac: Tensor
    aref: Tensor
    force: Tensor
    scale: Tensor
    penalty: Penalty


class State(NamedTuple):
    """An iterate: acceleration a, M a, J a - aref, the gradient, and what became of the world.

    Conjugate gradients also keep M^-1 times the gradient, and the last direction.
    """

    qacc: Tensor
    momentum: Tensor
    residual: Tensor
    grad: Tensor
    solved: Tensor
    search: Tensor
    niter: Tensor
    done: Tensor


class Point(NamedTuple):
    """A point of the line search: step, cost above the start's, and the cost's two derivatives, each (B,)."""

    alpha: Tensor
    cost: Tensor
    slope: Tensor
    curvature: Tensor


class Line(NamedTuple):
    """The cost along a search direction: rows (nefc, B) at the start and per unit step, and M's part as a quadratic."""

    penalty: Penalty
    residual: Tensor
    rate: Tensor
    linear: Tensor
    quadratic: Tensor


@by_parts
def solve(system: System, given: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    """The operator `solve` by `newton`, of dense rows."""
    results = [_solve_block(system, block) for block in _blocks(given)]
    qacc, qfrc_constraint, niter = (torch.cat(x, -1) for x in zip(*results, strict=True))
    return qacc, qfrc_constraint, niter


def _blocks(given: Arguments) -> list[Arguments]:
    worlds = given.M.shape[-1]
    if given.M.device.type != "cpu" or worlds <= BLOCK:
        return [given]
    return [
        Arguments(*(x if x.shape[-1] == 1 else x[..., start : start + BLOCK].contiguous() for x in given))
        for start in range(0, worlds, BLOCK)
    ]


def _solve_block(system: System, given: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    J, weight, reference = make_rows(system, given.factors)
    aref = reference - given.damping * _mul(J, given.qvel)
    penalty = make_penalty(system, weight, given.frictionloss, given.cone_friction)
    starts = given.qacc_smooth, given.qacc_warmstart
    qacc, niter = newton(full_m(given.M, system), J, aref, given.qfrc_smooth, penalty, *starts)
    rows = penalty.force(_mul(J, qacc) - aref)
    return qacc, (J * rows.unsqueeze(1)).sum(0), niter


def newton(
    mass: Tensor,
    jac: Tensor,
    aref: Tensor,
    force: Tensor,
    penalty: Penalty,
    qacc_smooth: Tensor,
    qacc_warmstart: Tensor,
) -> tuple[Tensor, Tensor]:
    """Accelerations (nv, B) of least cost, and iterations used (B,) int32.

    M (nv, nv, B), J (nefc, nv, B), aref (nefc, B), qfrc_smooth, qacc_smooth and qacc_warmstart (nv, B). A world without
    active rows gets qacc_smooth and 0 iterations. Waits for the device once per iteration and line search step, except
    while a CUDA graph is captured: then the full counts are run, masked.
    """
    scale = 1 / mass.diagonal().sum(-1).clamp_min(MINVAL)
    problem = Problem(mass, jac, aref, force, scale, penalty)
    state = _start(problem, qacc_smooth, qacc_warmstart)
    asynchronous = mass.is_cuda and torch.cuda.is_current_stream_capturing()
    result = state
    index = None
    for step in range(penalty.system.iterations):
        if not asynchronous:
            busy = int((~state.done).sum())
            if busy == 0:
                break
            if busy <= state.done.numel() // 2:
                result = _put(result, state, index)
                keep = (~state.done).nonzero().squeeze(-1)
                index = keep if index is None else index[keep]
                problem, state = _take(problem, keep), _take(state, keep)
        state = _iterate(problem, state, step, asynchronous)
    result = _put(result, state, index)
    return result.qacc, result.niter


def _take(values: _T, index: Tensor) -> _T:
    return type(values)(
        *(x.take(index) if isinstance(x, Penalty) else x.index_select(-1, index) for x in values)
    )


def _put(whole: State, part: State, index: Tensor | None) -> State:
    """`whole` with the worlds of `index` (None: all of them) replaced by those of `part`."""
    if index is None:
        return part
    return State(*(x.index_copy(-1, index, y) for x, y in zip(whole, part, strict=True)))


def _start(problem: Problem, qacc_smooth: Tensor, qacc_warmstart: Tensor) -> State:
    """The better of the two starting points, and whether the world is solved there already."""
    warm = _cost(problem, qacc_warmstart, qacc_smooth)
    smooth = _cost(problem, qacc_smooth, qacc_smooth)
    constrained = problem.penalty.constrained
    qacc = torch.where((warm > smooth) | ~constrained, qacc_smooth, qacc_warmstart)
    momentum = _mul(problem.mass, qacc)
    residual = _mul(problem.jac, qacc) - problem.aref
    grad = _gradient(problem, momentum, residual)
    solved = _solve_mass(problem, grad)
    niter = torch.zeros(qacc.shape[-1], dtype=torch.int32, device=qacc.device)
    done = ~constrained | _certified(problem, grad, solved)
    return State(qacc, momentum, residual, grad, solved, torch.zeros_like(grad), niter, done)


def _cost(problem: Problem, qacc: Tensor, qacc_smooth: Tensor) -> Tensor:
    inertial = (_mul(problem.mass, qacc) - problem.force) * (qacc - qacc_smooth)
    return 0.5 * inertial.sum(0) + problem.penalty.cost(_mul(problem.jac, qacc) - problem.aref)


def _certified(problem: Problem, grad: Tensor, solved: Tensor) -> Tensor:
    """True where the duality gap 1/2 g' M^-1 g and the gradient both prove that no iteration is needed."""
    tolerance = problem.penalty.system.tolerance
    gap = 0.5 * (grad * solved).sum(0)
    return (problem.scale * gap < tolerance) & (problem.scale * _norm(grad) < tolerance)


def _iterate(problem: Problem, state: State, step: int, asynchronous: bool) -> State:
    """One step of every world that is not done."""
    s = problem.penalty.system
    newton = s.solver == SolverType.NEWTON
    search = _newton_direction(problem, state) if newton else state.search
    done = state.done
    if step > 0 and newton:
        decrement = -0.5 * (state.grad * search).sum(0)
        done = done | ~(problem.scale * decrement >= s.tolerance)
    if step == 0 and not newton:
        search = -state.solved

    search_momentum = _mul(problem.mass, search)
    rate = _mul(problem.jac, search)
    linear = (search * (state.momentum - problem.force)).sum(0)
    line = Line(problem.penalty, state.residual, rate, linear, 0.5 * (search * search_momentum).sum(0))
    length = _norm(search)
    slope_tolerance = s.tolerance * s.ls_tolerance * length / problem.scale
    found = _line_search(line, slope_tolerance, done | (length < MINVAL), s.ls_iterations, asynchronous)

    done = done | (found.alpha == 0)
    alpha = torch.where(done, 0, found.alpha)
    qacc = torch.where(done, state.qacc, state.qacc + alpha * search)
    momentum = torch.where(done, state.momentum, state.momentum + alpha * search_momentum)
    residual = torch.where(done, state.residual, state.residual + alpha * rate)
    grad = _gradient(problem, momentum, residual)
    niter = state.niter + (~done).to(torch.int32)
    improvement, gradient = -problem.scale * found.cost, problem.scale * _norm(grad)
    done = done | ((improvement > 0) & (improvement < s.tolerance)) | ~(gradient >= s.tolerance)
    solved = state.solved
    if not newton:
        solved = _solve_mass(problem, grad)
        search = _conjugate_direction(search, state.grad, state.solved, grad, solved)
    return State(qacc, momentum, residual, grad, solved, search, niter, done)


def _newton_direction(problem: Problem, state: State) -> Tensor:
    rows, stiffness = problem.penalty.hessian_rows(problem.jac, state.residual)
    return -chol_solve(chol_factor(hessian(problem.mass, rows, stiffness)), state.grad)


def _conjugate_direction(
    search: Tensor, grad: Tensor, solved: Tensor, new: Tensor, new_solved: Tensor
) -> Tensor:
    """The next direction of conjugate gradients, by Hager and Zhang's formula with M as preconditioner.

    Source: Hager and Zhang, "A new conjugate gradient method with guaranteed descent and an efficient line search",
    SIAM J. Optim. 16 (2005), equations 1.3 to 1.6; their bound from below, with eta = 0.01, was found to be C's.
    """
    change, change_solved = new - grad, new_solved - solved
    along = (search * change).sum(0)
    safe = torch.where(along.abs() < MINVAL, MINVAL, along)
    bent = change_solved - 2 * search * ((change * change_solved).sum(0) / safe)
    least = -1 / (_norm(search) * _norm(grad).clamp_max(_HAGER_ZHANG)).clamp_min(MINVAL)
    beta = torch.maximum((bent * new).sum(0) / safe, least)
    return -new_solved + beta * search


def _solve_mass(problem: Problem, grad: Tensor) -> Tensor:
    return chol_solve(chol_factor(problem.mass), grad)


def _gradient(problem: Problem, momentum: Tensor, residual: Tensor) -> Tensor:
    force = problem.penalty.force(residual)
    return momentum - problem.force - (problem.jac * force.unsqueeze(1)).sum(0)


def _line_search(
    line: Line, tolerance: Tensor, done: Tensor, ls_iterations: int, asynchronous: bool
) -> Point:
    """Step of least cost along the line, per world; step 0 where `done` or where nothing better is found."""
    start = _evaluate(line, torch.zeros_like(line.linear))
    terms = (
        2 * line.penalty.cost(line.residual) * (start.curvature - 2 * line.quadratic).clamp_min(0)
    ).sqrt() + line.linear.abs()
    tolerance = torch.maximum(tolerance, _SLOPE_NOISE * torch.finfo(terms.dtype).eps * terms)

    first = _evaluate(line, _newton_step(start))
    result = _pick(done, start, first)
    neval = torch.full_like(done, 2, dtype=torch.int32)
    searching = ~done & (first.slope.abs() >= tolerance) & (neval < ls_iterations)
    direction = torch.where(first.slope < 0, 1.0, -1.0).to(first.slope.dtype)

    # Newton steps from one side until the slope changes its sign.
    near, far = first, first
    bracketed = torch.zeros_like(done)
    for _ in range(ls_iterations):
        if not asynchronous and not bool(searching.any()):
            break
        trial = _evaluate(line, _newton_step(near))
        far, near = _pick(searching, near, far), _pick(searching, trial, near)
        neval = neval + searching.to(torch.int32)
        result = _pick(searching, near, result)
        going = searching & (near.slope.abs() >= tolerance) & (neval < ls_iterations)
        searching = going & (near.slope * direction <= -tolerance)
        bracketed = bracketed | (going & ~searching)
    return _bracket(line, start, near, far, result, tolerance, bracketed, neval, ls_iterations, asynchronous)


def _bracket(
    line, start, near, far, result, tolerance, searching, neval, ls_iterations, asynchronous
) -> Point:
    """Shrink the bracket [near, far] by Newton steps from its ends and by its midpoint, where `searching`."""
    if not asynchronous and not bool(searching.any()):
        return result
    near_next, far_next = _evaluate(line, _newton_step(near)), near
    neval = neval + searching.to(torch.int32)
    for _ in range(ls_iterations):
        exhausted = searching & (neval >= ls_iterations)
        result = _pick(exhausted, _better(start, near, far), result)
        searching = searching & ~exhausted
        if not asynchronous and not bool(searching.any()):
            break
        middle = _evaluate(line, 0.5 * (near.alpha + far.alpha))
        neval = neval + searching.to(torch.int32)

        candidates = (near_next, far_next, middle)
        best, converged = _best_converged(candidates, tolerance)
        result = _pick(searching & converged, best, result)
        searching = searching & ~converged

        near, near_moved = _tighten(near, candidates)
        far, far_moved = _tighten(far, candidates)
        stuck = searching & ~near_moved & ~far_moved
        fallback = _pick(middle.cost < start.cost, middle, _better(start, near, far))
        result = _pick(stuck, fallback, result)
        searching = searching & ~stuck

        near_next = _pick(near_moved, _evaluate(line, _newton_step(near)), near_next)
        far_next = _pick(far_moved, _evaluate(line, _newton_step(far)), far_next)
        neval = neval + (searching & near_moved).to(torch.int32) + (searching & far_moved).to(torch.int32)
    return _pick(searching, _better(start, near, far), result)


def _evaluate(line: Line, alpha: Tensor) -> Point:
    residual = line.residual + alpha * line.rate
    cost = alpha * (line.linear + alpha * line.quadratic) + line.penalty.cost_above(line.residual, residual)
    slope = line.linear + 2 * alpha * line.quadratic - (line.rate * line.penalty.force(residual)).sum(0)
    curvature = 2 * line.quadratic + (line.rate * line.penalty.stiffen(residual, line.rate)).sum(0)
    return Point(alpha, cost, slope, torch.where(curvature <= 0, MINVAL, curvature))


def _newton_step(point: Point) -> Tensor:
    return point.alpha - point.slope / point.curvature


def _best_converged(candidates: tuple[Point, ...], tolerance: Tensor) -> tuple[Point, Tensor]:
    """The cheapest candidate whose slope is below the tolerance, and whether there is one."""
    best, found = candidates[0], candidates[0].slope.abs() < tolerance
    for candidate in candidates[1:]:
        take = (candidate.slope.abs() < tolerance) & (~found | (candidate.cost < best.cost))
        best, found = _pick(take, candidate, best), found | take
    return best, found


def _tighten(end: Point, candidates: tuple[Point, ...]) -> tuple[Point, Tensor]:
    """The bracket's end moved to the candidate of the same sign and least slope, and whether it moved."""
    moved = torch.zeros_like(end.slope, dtype=torch.bool)
    for candidate in candidates:
        take = ((end.slope < candidate.slope) & (candidate.slope < 0)) | (
            (end.slope > candidate.slope) & (candidate.slope > 0)
        )
        end, moved = _pick(take, candidate, end), moved | take
    return end, moved


def _better(start: Point, near: Point, far: Point) -> Point:
    """The cheaper end of the bracket, or the start where neither lowers the cost."""
    end = _pick(near.cost <= far.cost, near, far)
    return _pick(end.cost < start.cost, end, start)


def _pick(mask: Tensor, yes: Point, no: Point) -> Point:
    return Point(*(torch.where(mask, a, b) for a, b in zip(yes, no, strict=True)))


def _mul(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix * vector).sum(1)


def _norm(vector: Tensor) -> Tensor:
    return (vector * vector).sum(0).sqrt()
