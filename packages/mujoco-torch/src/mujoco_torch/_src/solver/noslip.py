"""The no-slip pass (``mj_solNoSlip``), worlds last, in plain torch.

After the solve, the friction forces alone are found again, as if they were hard: projected Gauss-Seidel sweeps over the
dual problem 1/2 f' A f + f' b without its regularisation, A = J M^-1 J', b = J qacc_smooth - aref. Friction losses come
first, then contacts, each with its normal force held. A is never made: a row's part of A f goes by way of the dofs.

Source: MuJoCo documentation, "Computation", sections "Algorithms: NoSlip, PGS" and "Dual problem"; the thresholds are
those of engine_solver.c and engine_util_solve.c.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import Factors
from .linalg import MINVAL
from .mass import full_m
from .penalty import make_penalty
from .rows import make_rows
from .system import System

_FLAT = 1e-10
"""Least diagonal of a block, largest change of the cost that counts as none, and the precision of a cone's solve."""

_CONE_STEPS = 20
_ROUNDING = 16.0
"""Times the epsilon of the dtype: a pivot below that part of its diagonal is rounding."""

BLOCK = 128
"""Worlds at a time on a CPU: of 200 rows and 27 dofs there are two arrays of 5,400 numbers a world."""


class Dual(NamedTuple):
    """The problem of each world: A = half half', of half = (L^-1 J')' (nefc, nv, B) with M = L L'.

    b (nefc, B), which rows are active, and their bounds.
    """

    half: Tensor
    b: Tensor
    active: Tensor
    loss: Tensor
    friction: Tensor


class Forces(NamedTuple):
    """Forces (nefc, B) of all rows, and half' times them (nv, B)."""

    rows: Tensor
    joint: Tensor

    def where(self, mask: Tensor, other: "Forces") -> "Forces":
        """These in the worlds of the mask, else the others."""
        return Forces(*(torch.where(mask, x, y) for x, y in zip(self, other, strict=True)))


def noslip(*args) -> tuple[Tensor, ...]:
    """The operator `noslip`: qacc and qfrc_constraint (nv, B), forces (nefc, B), sweeps (B,) int32.

    Its arguments are M and what rows are made of, as `solve` takes them, then qacc_smooth, qacc and the system.
    """
    *inputs, system = args
    s = System.of(system)
    return _by_blocks(lambda *part: _pass(s, *part), _each_world(inputs))


def noslip_grad(*args) -> tuple[Tensor, ...]:
    """Gradients of the tensors that `noslip` takes, of those of its first three results, through all sweeps.

    Each comes with its worlds, also where the tensor is the same in all of them.
    """
    *inputs, system = args
    s = System.of(system)

    def pull(*part: Tensor) -> tuple[Tensor, ...]:
        *given, grad_qacc, grad_qfrc, grad_force = part
        vjp = torch.func.vjp(lambda *x: _pass(s, *x)[:3], *given)[1]
        return vjp((grad_qacc, grad_qfrc, grad_force))

    return _by_blocks(pull, _each_world(inputs))


def _each_world(inputs: list[Tensor]) -> list[Tensor]:
    """Tensors with the worlds of the first, M."""
    return [x.expand(*x.shape[:-1], inputs[0].shape[-1]) for x in inputs]


def _by_blocks(function: Callable, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """The results of a function of some worlds, for all of them."""
    if inputs[0].device.type != "cpu" or inputs[0].shape[-1] <= BLOCK:
        return tuple(x.clone(memory_format=torch.contiguous_format) for x in function(*inputs))
    parts = zip(*(x.split(BLOCK, -1) for x in inputs), strict=True)
    return tuple(torch.cat(x, -1) for x in zip(*(function(*part) for part in parts), strict=True))


def _pass(s: System, M: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *factors, cone_friction, damping, frictionloss, qvel, qacc_smooth, qacc = inputs
    J, D, reference = make_rows(s, Factors(*factors))
    aref = reference - damping * _mul(J, qvel)
    force = make_penalty(s, D, frictionloss, cone_friction).force(_mul(J, qacc) - aref)
    mass = full_m(M, s).movedim(-1, 0)
    root = torch.linalg.cholesky_ex(mass)[0]
    half = torch.linalg.solve_triangular(root, J.permute(2, 1, 0), upper=False)
    half = half.permute(2, 1, 0).contiguous()
    dual = Dual(half, _mul(J, qacc_smooth) - aref, D > 0, frictionloss, cone_friction)
    scale = 1 / mass.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(MINVAL)
    gain = 0.5 * (force * force / torch.where(dual.active, D, 1.0)).sum(0)
    force, niter = _sweeps(s, dual, Forces(force, _mul_transposed(half, force)), scale, gain)
    qfrc = _mul_transposed(J, force)
    change = torch.cholesky_solve(qfrc.T.unsqueeze(-1), root).squeeze(-1).T
    return qacc_smooth + change, qfrc, force, niter


def _mul(J: Tensor, x: Tensor) -> Tensor:
    return (J * x).sum(1)


def _mul_transposed(J: Tensor, x: Tensor) -> Tensor:
    return (J * x.unsqueeze(1)).sum(0)


def _sweeps(s: System, dual: Dual, forces: Forces, scale: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Forces of all rows when each world has stopped, and its sweeps; `gain` is of what is no longer regularised."""
    done = ~dual.active.any(0)
    niter = torch.zeros_like(done, dtype=torch.int32)
    for _ in range(s.noslip_iterations):
        if done.device.type == "cpu" and bool(done.all()):
            break
        new, change = _sweep(s, dual, forces)
        gain = gain - change
        forces = forces.where(done, new)
        niter = niter + (~done).to(torch.int32)
        done = done | (scale * gain < s.noslip_tolerance)
        gain = torch.zeros_like(gain)
    return forces.rows, niter


def _sweep(s: System, dual: Dual, forces: Forces) -> tuple[Forces, Tensor]:
    """Forces after one pass over all friction, and the change of the dual cost."""
    total = torch.zeros_like(forces.rows[0])
    for row in range(s.ne, s.ne + s.nf):
        forces, change = _update(dual, forces, range(row, row + 1), _bounded, dual.loss[row - s.ne])
        total = total + change
    for contact, dim in enumerate(s.contact_dim):
        rows = range(s.ngiven + s.contact_row[contact], s.ngiven + s.contact_row[contact + 1])
        if dim == 1 or (total.device.type == "cpu" and not bool(dual.active[rows.start].any())):
            continue
        if s.cone:
            bounds = dual.friction[1:dim, contact], forces.rows[rows.start]
            forces, change = _update(dual, forces, rows[1:], _in_cone, *bounds)
            total = total + change
            continue
        for edge in rows[::2]:
            forces, change = _update(dual, forces, range(edge, edge + 2), _opposite)
            total = total + change
    return forces, total


def _update(
    dual: Dual, forces: Forces, rows: range, solve: Callable, *bounds: Tensor
) -> tuple[Forces, Tensor]:
    """The forces of some rows found again, where that lowers the cost, and its change."""
    at = slice(rows.start, rows.stop)
    half, old = dual.half[at], forces.rows[at]
    residual = dual.b[at] + (half * forces.joint).sum(1)
    block = (half.unsqueeze(1) * half.unsqueeze(0)).sum(2)
    least = MINVAL if len(rows) == 1 else _FLAT
    block = _shifted(block, (least - block.diagonal().T).clamp_min(0))
    new = solve(block, residual - (block * old).sum(1), old, *bounds)
    step = new - old
    change = (step * (0.5 * (block * step).sum(1) + residual)).sum(0)
    keep = dual.active[rows.start] & ((change <= _FLAT) | (len(rows) == 1))
    step = torch.where(keep, step, 0.0)
    new = torch.cat((forces.rows[: rows.start], torch.where(keep, new, old), forces.rows[rows.stop :]))
    return Forces(new, forces.joint + (half * step.unsqueeze(1)).sum(0)), torch.where(keep, change, 0.0)


def _bounded(A: Tensor, b: Tensor, old: Tensor, loss: Tensor) -> Tensor:
    """Friction loss: the minimum of a parabola in [-loss, loss]."""
    return torch.maximum(torch.minimum(-b / A[0], loss), -loss)


def _opposite(A: Tensor, b: Tensor, old: Tensor) -> Tensor:
    """Opposite edges of a pyramid: their sum is held, the difference is found."""
    middle = 0.5 * (old[0] + old[1])
    curvature = A[0, 0] + A[1, 1] - A[0, 1] - A[1, 0]
    slope = middle * (A[0, 0] - A[1, 1]) + b[0] - b[1]
    flat = curvature < MINVAL
    half = torch.where(flat, 0.0, -slope / torch.where(flat, 1.0, curvature))
    half = torch.maximum(torch.minimum(half, middle), -middle)
    return torch.stack((middle + half, middle - half))


def _in_cone(A: Tensor, b: Tensor, old: Tensor, friction: Tensor, normal: Tensor) -> Tensor:
    """Friction of an elliptic cone: the minimum of 1/2 v' A v + b' v with |v / friction| <= normal.

    Its multiplier is the root of |v|^2 - normal^2, found by Newton's method from zero on, from one side.
    """
    A, b = A * friction.unsqueeze(1) * friction, b * friction
    held = (normal >= MINVAL) & ~_singular(A)
    A = _shifted(torch.where(held, A, 0.0), torch.where(held, 0.0, 1.0))
    square = torch.where(held, normal, 1.0) ** 2
    multiplier, going = torch.zeros_like(normal), held
    v = torch.zeros_like(b)
    for _ in range(_CONE_STEPS):
        found, bent = _solve_small(_shifted(A, multiplier), -b)
        v = torch.where(going, found, v)
        over = (found * found).sum(0) - square
        going = going & (over >= _FLAT)
        step = over / torch.where(going, 2 * (found * bent).sum(0), 1.0)
        going = going & (step >= _FLAT)
        multiplier = torch.where(going, multiplier + step, multiplier)
    length = (v * v).sum(0)
    outside = (multiplier != 0) & (length > 0)
    reach = (square / torch.where(outside, length, 1.0).clamp_min(MINVAL)).sqrt()
    return torch.where(held, friction * v * torch.where(outside, reach, 1.0), 0.0)


def _shifted(A: Tensor, by: Tensor) -> Tensor:
    """A (n, n, B) plus a diagonal, by (n, B), or by (B,) everywhere."""
    return A + torch.diag_embed(by.expand(len(A), -1).T, dim1=0, dim2=1)


def _singular(A: Tensor) -> Tensor:
    """Where C takes A (n, n, B) for singular: by its determinant up to n = 3, then by its pivots.

    Also where a pivot is rounding: in float32 that is more than C's threshold.
    """
    pivots = torch.stack(_factor(A.detach())[1])
    rounding = _ROUNDING * torch.finfo(A.dtype).eps * A.detach().diagonal().T
    small = (pivots.prod(0) if len(A) <= 3 else pivots.amin(0)) < _FLAT
    return small | (pivots < rounding).any(0)


def _factor(A: Tensor) -> tuple[list[list[Tensor]], list[Tensor]]:
    """L and D of A = L D L', of small n: L unit lower, by rows without the diagonal."""
    lower: list[list[Tensor]] = []
    pivots: list[Tensor] = []
    for i in range(len(A)):
        row: list[Tensor] = []
        for j in range(i):
            rest = A[i, j] - sum(row[k] * pivots[k] * lower[j][k] for k in range(j))
            row.append(rest / pivots[j])
        pivot = A[i, i] - sum(row[k] * row[k] * pivots[k] for k in range(i))
        pivots.append(torch.where(pivot < MINVAL, MINVAL, pivot))
        lower.append(row)
    return lower, pivots


def _solve_small(A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """x = A^-1 b and A^-1 x (n, B), of small n."""
    lower, pivots = _factor(A)

    def solve(right: Tensor) -> Tensor:
        x: list[Tensor] = []
        for i in range(len(b)):
            x.append(right[i] - sum(lower[i][k] * x[k] for k in range(i)))
        x = [y / pivot for y, pivot in zip(x, pivots, strict=True)]
        for i in reversed(range(len(b))):
            x[i] = x[i] - sum(lower[k][i] * x[k] for k in range(i + 1, len(b)))
        return torch.stack(x)

    found = solve(b)
    return found, solve(found)
