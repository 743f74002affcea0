"""The constraint solve of newton.py as one kernel, Newton's method or conjugate gradients.

A program takes a group of worlds at a time, as many as fill a warp beside the dofs (one from 17 dofs on), until none is
left. It loops until its worlds have converged. H is factorised in registers; M, the factor and the rows in use are in a
workspace that belongs to the program and stays in its cache: as large as the GPU, not as the batch.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mujoco_torch._src.enums import SolverType

from ..arguments import Arguments
from ..parts import by_parts
from ..system import System
from . import launch
from .cones import CONE, make_cones
from .line_search import Line, search_line
from .penalty import add_stiffness, pull, squares
from .rows import ROWS, Factors, Rows, Structure, before_cones, list_rows, make_rows, move, multiply
from .tables import sides_of, tables_of
from .tiles import (
    MINVAL,
    anywhere,
    dot,
    floor_at,
    load_mass,
    load_vector,
    matrix_at,
    solve_factored,
    solve_symmetric,
    store_vector,
)

HAGER_ZHANG = tl.constexpr(0.01)
"""eta of the conjugate direction, as in the reference."""

WARPS = 16
"""Warps to a multiprocessor. A program that starts late, because fewer fit, finds less or nothing to do."""


@by_parts
def solve(system: System, given: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    """The operator `solve`. Rows have the weight of their contact: `row_scale` differs from 1 in cones alone, which do
    not need it: the cost is smooth.
    """
    M, smooth = given.M, given.qacc_smooth
    qacc = torch.empty_like(smooth, memory_format=torch.contiguous_format)
    qfrc_constraint, niter = torch.empty_like(qacc), M.new_empty(M.shape[-1], dtype=torch.int32)
    if not (system.nv and system.nefc and niter.numel()):
        return qacc.copy_(smooth), qfrc_constraint.zero_(), niter.zero_()
    if given.given_jac.stride(-1) == 0:  # the same in all worlds
        given = given._replace(given_jac=given.given_jac[..., :1])
    inputs = launch.contiguous(*(x for name, x in given._asdict().items() if name != "row_scale"))
    _launch(system, inputs, (qacc, qfrc_constraint, niter))
    return qacc, qfrc_constraint, niter


def _launch(s: System, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, Tensor, Tensor]) -> None:
    M, given_jac, contact_ref = inputs[0], inputs[6], inputs[10]
    worlds = M.shape[-1]
    n, w = launch.padded(s.nv), _group(M, launch.padded(s.nv))
    values = constants(s, n, w, contact_ref.shape[0])
    warps = launch.warps(n * n * w, M.dtype)
    programs = min(triton.cdiv(worlds, w), _resident(M.device, warps))
    workspace = M.new_empty((programs, values["SIZE"]))
    slot_row = M.new_empty((programs, values["SLOTS"] * w), dtype=torch.int32)
    next_group = M.new_zeros(1, dtype=torch.int32)
    t = tables_of(s, M.device)
    with launch.on_device(M):
        newton_kernel[(programs,)](
            *inputs, *outputs, t.element, t.constraint_row, t.row_constraint, t.given_at, t.side_root,
            t.side_moved, workspace, slot_row, next_group, worlds, given_jac.shape[-1], **values,
            num_warps=warps, enable_fp_fusion=True,
        )  # fmt: skip


def _group(M: Tensor, n: int) -> int:
    """Worlds that a program takes at a time. Triton's interpreter is faster with more."""
    return max(1, launch.LANES // n) if M.is_cuda else min(8, triton.next_power_of_2(M.shape[-1]))


def constants(s: System, n: int, w: int, reference_axes: int) -> dict[str, Any]:
    """What is compiled into the kernel of a system: sizes, kinds of rows, options; `w` worlds of `n` dofs, padded."""
    slots = _blocks(s.nefc - len(s.cone_rows.entries)) + _blocks(s.axes * s.cones)
    bounded = s.ne + s.nf > 0
    general = bounded or s.cones > 0
    # M, its factor, and of each slot a row of J and four more numbers, or two more; the numbers of cones.
    size = 2 * n * n + slots * (n + (6 if general else 4)) + CONE.value * _blocks(s.cones)
    return {
        "nv": s.nv,
        "nbody": s.nbody,
        "equalities": s.ne,
        "frictions": s.nf,
        "given": s.ngiven,
        "contacts": s.contacts,
        "contact_rows": s.rows,
        "axes": s.axes,
        "sides": sides_of(s),
        "widest": max(1, 2 * (s.axes - 1)),
        "references": reference_axes if s.cones or reference_axes > 1 else 0,
        "cone_axes": s.axes if s.cones else 0,
        "bounded": bounded,
        "conjugate": s.solver == SolverType.CG,
        "tolerance": s.tolerance,
        "ls_tolerance": s.ls_tolerance,
        "iterations": s.iterations,
        "ls_iterations": s.ls_iterations,
        "SLOTS": slots,
        "SIZE": size * w,
        "N": n,
        "W": w,
    }


def _blocks(count: int) -> int:
    """Room for so many of what is worked on in blocks of ROWS."""
    return triton.cdiv(count, ROWS.value) * ROWS.value


def _resident(device: torch.device, warps: int) -> int:
    """Programs that a device works on at once; one where Triton's interpreter does."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count * WARPS // warps


@triton.jit
def newton_kernel(
    M, cdof, subtree_com, contact_pos, contact_frame, row_edge, given_jac, given_D, given_ref,
    contact_D, contact_ref, cone_friction, damping, frictionloss, qvel, qfrc_smooth, qacc_smooth, qacc_warmstart,
    qacc_out, qfrc_out, niter_out,
    element, constraint_row, row_constraint, given_at, side_root, side_moved, workspace, slot_row, next_group,
    worlds: tl.int64, given_worlds: tl.int64,
    nv: tl.constexpr, nbody: tl.constexpr, equalities: tl.constexpr, frictions: tl.constexpr, given: tl.constexpr,
    contacts: tl.constexpr, contact_rows: tl.constexpr, axes: tl.constexpr, sides: tl.constexpr,
    widest: tl.constexpr, references: tl.constexpr, cone_axes: tl.constexpr, bounded: tl.constexpr,
    conjugate: tl.constexpr, tolerance: tl.constexpr, ls_tolerance: tl.constexpr, iterations: tl.constexpr,
    ls_iterations: tl.constexpr, SLOTS: tl.constexpr, SIZE: tl.constexpr, N: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """All groups of worlds: programs take the next one from a counter, `next_group`."""
    program = tl.program_id(0).to(tl.int64)
    mass = workspace + program * SIZE
    factor = mass + N * N * W
    jac = factor + N * N * W
    weight = jac + SLOTS * N * W
    row = slot_row + program * (SLOTS * W)
    group = tl.atomic_add(next_group, 1).to(tl.int64)
    while group * W < worlds:
        world = group * W + tl.arange(0, W)
        inside = world < worlds
        # A tuple that is assigned to a name would lose its constants.
        qacc, force, niter = _solve_group(
            Structure(
                constraint_row, row_constraint, given_at, side_root, side_moved, nv, nbody, equalities, frictions,
                given, contacts, contact_rows, axes, sides, widest, references,
            ),
            Factors(
                cdof, subtree_com, contact_pos, contact_frame, row_edge, given_jac, given_worlds, given_D, given_ref,
                contact_D, contact_ref, cone_friction, damping, frictionloss,
            ),
            Rows(
                jac, weight, weight + SLOTS * W, weight + 2 * SLOTS * W, weight + 3 * SLOTS * W,
                weight + 4 * SLOTS * W, weight + 5 * SLOTS * W, row, weight + 6 * SLOTS * W, 0, 0, 0, cone_axes,
                bounded,
            ),
            M, element, mass, factor, qvel, qfrc_smooth, qacc_smooth, qacc_warmstart, world, inside, worlds,
            conjugate, tolerance, ls_tolerance, iterations, ls_iterations, N,
        )  # fmt: skip
        store_vector(qacc_out, qacc, nv, world, inside, worlds)
        store_vector(qfrc_out, force, nv, world, inside, worlds)
        tl.store(niter_out + world, niter, mask=inside)
        tl.debug_barrier()
        group = tl.atomic_add(next_group, 1).to(tl.int64)


@triton.jit
def _solve_group(
    s, f, rows, M, element, mass, factor, qvel, qfrc_smooth, qacc_smooth, qacc_warmstart, world, inside, worlds,
    conjugate: tl.constexpr, tolerance: tl.constexpr, ls_tolerance: tl.constexpr, iterations: tl.constexpr,
    ls_iterations: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Accelerations, the rows' joint forces (N, W) and iterations (W,) of a group."""
    filled, cones = list_rows(s, f, rows, world, inside, worlds)
    plain, most = tl.max(filled, 0), 0
    count = plain
    if rows.axes > 0:
        plain, most = before_cones(filled), tl.max(cones, 0)
        count = plain + most * rows.axes
    qacc = load_vector(qacc_smooth, s.nv, world, inside, worlds, N)
    force = tl.zeros_like(qacc)
    niter = tl.zeros((world.shape[0],), tl.int32)
    if count > 0:
        qacc, force, niter = _solve_rows(
            s, f,
            Rows(
                rows.jac, rows.weight, rows.aref, rows.residual, rows.rate, rows.low, rows.high, rows.row, rows.cone,
                plain, most, count, rows.axes, rows.bounded,
            ),
            M, element, mass, factor, filled, cones, qvel, qfrc_smooth, qacc, qacc_warmstart, world, inside, worlds,
            conjugate, tolerance, ls_tolerance, iterations, ls_iterations,
        )  # fmt: skip
    return qacc, force, niter


@triton.jit
def _solve_rows(
    s, f, rows, M, element, mass, factor, filled, cones, qvel, qfrc_smooth, smooth, qacc_warmstart, world, inside,
    worlds, conjugate: tl.constexpr, tolerance: tl.constexpr, ls_tolerance: tl.constexpr, iterations: tl.constexpr,
    ls_iterations: tl.constexpr,
):  # fmt: skip
    """The same of a group that has rows; `smooth` is its qacc_smooth."""
    N: tl.constexpr = smooth.shape[0]
    W: tl.constexpr = smooth.shape[1]
    velocity = load_vector(qvel, s.nv, world, inside, worlds, N)
    make_rows(s, f, rows, filled, cones, velocity, world, inside, worlds)
    if rows.axes > 0:
        make_cones(s, f, rows, cones, world, worlds)
    constrained = filled > 0
    if rows.axes > 0:
        constrained = constrained | (cones > 0)
    tl.store(mass + matrix_at(N, W), load_mass(M, element, world, inside, worlds, N))
    smooth_force = load_vector(qfrc_smooth, s.nv, world, inside, worlds, N)
    warm = load_vector(qacc_warmstart, s.nv, world, inside, worlds, N)
    qacc, niter = newton(
        rows, mass, factor, constrained, smooth_force, smooth, warm, s.nv,
        conjugate, tolerance, ls_tolerance, iterations, ls_iterations,
    )  # fmt: skip
    multiply(rows, qacc, rows.residual, True)
    return qacc, -pull(rows, N, W), niter


@triton.jit
def newton(
    rows, mass, factor, constrained, force, smooth, warm, nv: tl.constexpr, conjugate: tl.constexpr,
    tolerance: tl.constexpr, ls_tolerance: tl.constexpr, iterations: tl.constexpr, ls_iterations: tl.constexpr,
):  # fmt: skip
    """Accelerations (N, W) of least cost and iterations (W,), of rows and M in the workspace."""
    N: tl.constexpr = force.shape[0]
    W: tl.constexpr = force.shape[1]
    scale = 1 / floor_at(_trace(mass, N, W), MINVAL)
    qacc = _cheaper_start(rows, mass, constrained, force, smooth, warm)
    momentum = _momentum(mass, qacc)
    multiply(rows, qacc, rows.residual, True)
    grad = momentum - force + pull(rows, N, W)
    niter = tl.zeros((W,), tl.int32)
    if conjugate:
        solved, pivots = solve_symmetric(tl.load(mass + matrix_at(N, W)), grad, factor, nv)
        search = -solved
        done = ~constrained | (
            (scale * _norm(grad) < tolerance) & (scale * 0.5 * dot(grad, solved) < tolerance)
        )
    else:
        done = ~constrained | _certified(mass, factor, grad, scale, constrained, nv, tolerance)
    step = 0
    while (step < iterations) & anywhere(~done):
        if not conjugate:
            hessian = add_stiffness(rows, tl.load(mass + matrix_at(N, W)))
            search, _ = solve_symmetric(hessian, -grad, factor, nv)
            decrement = -0.5 * dot(grad, search)
            done = done | ((step > 0) & ~(scale * decrement >= tolerance))

        search_momentum = _momentum(mass, search)
        multiply(rows, search, rows.rate, False)
        length = _norm(search)
        slope_tolerance = tolerance * ls_tolerance * length / scale
        found = search_line(
            Line(rows, dot(search, momentum - force), 0.5 * dot(search, search_momentum)),
            slope_tolerance, done | (length < MINVAL), ls_iterations,
        )  # fmt: skip

        done = done | (found.alpha == 0)
        alpha = tl.where(done, 0.0, found.alpha)
        qacc = tl.where(done[None, :], qacc, qacc + alpha[None, :] * search)
        momentum = tl.where(done[None, :], momentum, momentum + alpha[None, :] * search_momentum)
        move(rows, alpha, done)
        new_grad = momentum - force + pull(rows, N, W)
        niter += (~done).to(tl.int32)
        improvement = -scale * found.cost
        done = (
            done | ((improvement > 0) & (improvement < tolerance)) | ~(scale * _norm(new_grad) >= tolerance)
        )
        if conjugate:
            new_solved = solve_factored(new_grad, factor, pivots, nv)
            search = _conjugate_direction(search, grad, solved, new_grad, new_solved)
            solved = new_solved
        grad = new_grad
        step += 1
    return qacc, niter


@triton.jit
def _conjugate_direction(search, grad, solved, new, new_solved):
    """The next direction (N, W), by Hager and Zhang's formula: newton.py."""
    change, change_solved = new - grad, new_solved - solved
    along = dot(search, change)
    safe = tl.where(tl.abs(along) < MINVAL, tl.full(along.shape, MINVAL, along.dtype), along)
    bent = change_solved - search * (2 * dot(change, change_solved) / safe)[None, :]
    steep = _norm(grad)
    steep = tl.where(steep > HAGER_ZHANG, tl.full(steep.shape, HAGER_ZHANG, steep.dtype), steep)
    least = -1 / floor_at(_norm(search) * steep, MINVAL)
    beta = dot(bent, new) / safe
    beta = tl.where(beta < least, least, beta)
    return beta[None, :] * search - new_solved


@triton.jit
def _norm(x):
    """Lengths (W,) of vectors (N, W)."""
    return tl.sqrt(dot(x, x))


@triton.jit
def _trace(mass, N: tl.constexpr, W: tl.constexpr):
    """The sum (W,) of the diagonal of M."""
    tl.debug_barrier()
    at = tl.arange(0, N)[:, None] * ((N + 1) * W) + tl.arange(0, W)[None, :]
    return tl.sum(tl.load(mass + at), 0)


@triton.jit
def _momentum(mass, x):
    """M x (N, W)."""
    return tl.sum(tl.load(mass + matrix_at(x.shape[0], x.shape[1])) * x[:, None, :], 0)


@triton.jit
def _cheaper_start(rows, mass, constrained, force, smooth, warm):
    """The cheaper of the two starting points, qacc_smooth without constraints."""
    W: tl.constexpr = force.shape[1]
    multiply(rows, warm, rows.residual, True)
    multiply(rows, smooth, rows.rate, True)
    cost = dot(_momentum(mass, warm) - force, warm - smooth) + squares(rows, rows.residual, W)
    use_smooth = (cost > squares(rows, rows.rate, W)) | ~constrained
    return tl.where(use_smooth[None, :], smooth, warm)


@triton.jit
def _certified(mass, factor, grad, scale, constrained, nv, tolerance: tl.constexpr):
    """Where the gradient and the duality gap 1/2 g' M^-1 g both prove that no iteration is needed."""
    flat = constrained & (scale * _norm(grad) < tolerance)
    if anywhere(flat):
        inverse, _ = solve_symmetric(
            tl.load(mass + matrix_at(grad.shape[0], grad.shape[1])), grad, factor, nv
        )
        flat = flat & (scale * 0.5 * dot(grad, inverse) < tolerance)
    return flat
