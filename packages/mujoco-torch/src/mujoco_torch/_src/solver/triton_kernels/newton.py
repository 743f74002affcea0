"""The constraint solve of newton.py as one kernel.

A program takes a group of worlds at a time, as many as fill a warp beside the dofs (one from 17 dofs on), until none is
left. It loops until its worlds have converged. H is factorised in registers; M, the factor and the rows in use are in a
workspace that belongs to the program and stays in its cache: as large as the GPU, not as the batch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mujoco_torch._src.enums import SolverType

from .. import newton as reference
from ..system import System
from . import launch
from .line_search import Line, search_line
from .rows import (
    ROWS,
    Factors,
    Rows,
    Structure,
    add_stiffness,
    list_rows,
    make_rows,
    move,
    multiply,
    pull,
    squares,
)
from .tables import sides_of, tables_of
from .tiles import (
    MINVAL,
    anywhere,
    dot,
    floor_at,
    load_mass,
    load_vector,
    matrix_at,
    solve_symmetric,
    store_vector,
)

WARPS = 16
"""Warps to a multiprocessor. A program that starts late, because fewer fit, finds less or nothing to do."""


def solve(
    M: Tensor,
    cdof: Tensor,
    subtree_com: Tensor,
    contact_pos: Tensor,
    contact_frame: Tensor,
    row_edge: Tensor,
    given_jac: Tensor,
    given_D: Tensor,
    given_ref: Tensor,
    contact_D: Tensor,
    contact_ref: Tensor,
    row_scale: Tensor,
    cone_friction: Tensor,
    damping: Tensor,
    frictionloss: Tensor,
    qvel: Tensor,
    qfrc_smooth: Tensor,
    qacc_smooth: Tensor,
    qacc_warmstart: Tensor,
    system: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator `solve`: limits and pyramids (whose row_scale is 1) by Newton's method; else the reference."""
    s = System.of(system)
    if s.cone or s.ne or s.nf or s.solver != SolverType.NEWTON or contact_ref.shape[0] > 1:
        return reference.solve(
            M, cdof, subtree_com, contact_pos, contact_frame, row_edge, given_jac, given_D, given_ref, contact_D,
            contact_ref, row_scale, cone_friction, damping, frictionloss, qvel, qfrc_smooth, qacc_smooth,
            qacc_warmstart, system,
        )  # fmt: skip
    qacc = torch.empty_like(qacc_smooth, memory_format=torch.contiguous_format)
    qfrc_constraint, niter = torch.empty_like(qacc), M.new_empty(M.shape[-1], dtype=torch.int32)
    if not (s.nv and s.ngiven + s.rows and niter.numel()):
        return qacc.copy_(qacc_smooth), qfrc_constraint.zero_(), niter.zero_()
    if given_jac.stride(-1) == 0:  # the same in all worlds
        given_jac = given_jac[..., :1]
    inputs = launch.contiguous(
        M, cdof, subtree_com, contact_pos, contact_frame, row_edge, given_jac, given_D, given_ref, contact_D,
        contact_ref, damping, qvel, qfrc_smooth, qacc_smooth, qacc_warmstart,
    )  # fmt: skip
    _launch(s, inputs, (qacc, qfrc_constraint, niter))
    return qacc, qfrc_constraint, niter


def _launch(s: System, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, Tensor, Tensor]) -> None:
    M, given_jac = inputs[0], inputs[6]
    worlds = M.shape[-1]
    n, slots = launch.padded(s.nv), slots_of(s)
    w = _group(M, n)
    warps = launch.warps(n * n * w, M.dtype)
    programs = min(triton.cdiv(worlds, w), _resident(M.device, warps))
    workspace = M.new_empty((programs, workspace_size(n, w, slots)))
    slot_row = M.new_empty((programs, slots * w), dtype=torch.int32)
    next_group = M.new_zeros(1, dtype=torch.int32)
    t = tables_of(s, M.device)
    with launch.on_device(M):
        newton_kernel[(programs,)](
            *inputs, *outputs, t.element, t.constraint_row, t.row_constraint, t.given_at, t.side_root,
            t.side_moved, workspace, slot_row, next_group, worlds, given_jac.shape[-1], **constants(s),
            SLOTS=slots, N=n, W=w, num_warps=warps, enable_fp_fusion=True,
        )  # fmt: skip


def _group(M: Tensor, n: int) -> int:
    """Worlds that a program takes at a time. Triton's interpreter is faster with more."""
    return max(1, launch.LANES // n) if M.is_cuda else min(8, triton.next_power_of_2(M.shape[-1]))


def constants(s: System) -> dict[str, float]:
    """What is compiled into the kernel of a system, beside the sizes of its tiles."""
    return {
        "nv": s.nv,
        "nbody": s.nbody,
        "given": s.ngiven,
        "contacts": s.contacts,
        "contact_rows": s.rows,
        "axes": s.axes,
        "sides": sides_of(s),
        "widest": max(1, 2 * (s.axes - 1)),
        "tolerance": s.tolerance,
        "ls_tolerance": s.ls_tolerance,
        "iterations": s.iterations,
        "ls_iterations": s.ls_iterations,
    }


def slots_of(s: System) -> int:
    """Slots for all rows that a world could use at once."""
    return triton.cdiv(s.ngiven + s.rows, ROWS.value) * ROWS.value


def workspace_size(n: int, w: int, slots: int) -> int:
    """Numbers that a program keeps: M, its factor, and of each slot a row of J and four more."""
    return (2 * n * n + slots * (n + 4)) * w


def _resident(device: torch.device, warps: int) -> int:
    """Programs that a device works on at once; one where Triton's interpreter does."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count * WARPS // warps


@triton.jit
def newton_kernel(
    M, cdof, subtree_com, contact_pos, contact_frame, row_edge, given_jac, given_D, given_ref,
    contact_D, contact_ref, damping, qvel, qfrc_smooth, qacc_smooth, qacc_warmstart, qacc_out, qfrc_out, niter_out,
    element, constraint_row, row_constraint, given_at, side_root, side_moved, workspace, slot_row, next_group,
    worlds: tl.int64, given_worlds: tl.int64,
    nv: tl.constexpr, nbody: tl.constexpr, given: tl.constexpr, contacts: tl.constexpr, contact_rows: tl.constexpr,
    axes: tl.constexpr, sides: tl.constexpr, widest: tl.constexpr, tolerance: tl.constexpr,
    ls_tolerance: tl.constexpr, iterations: tl.constexpr, ls_iterations: tl.constexpr, SLOTS: tl.constexpr,
    N: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """All groups of worlds: programs take the next one from a counter, `next_group`."""
    program = tl.program_id(0).to(tl.int64)
    mass = workspace + program * ((2 * N * N + SLOTS * (N + 4)) * W)
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
                constraint_row, row_constraint, given_at, side_root, side_moved,
                nv, nbody, given, contacts, contact_rows, axes, sides, widest,
            ),
            Factors(
                cdof, subtree_com, contact_pos, contact_frame, row_edge, given_jac, given_worlds, given_D, given_ref,
                contact_D, contact_ref, damping,
            ),
            Rows(jac, weight, weight + SLOTS * W, weight + 2 * SLOTS * W, weight + 3 * SLOTS * W, row, 0),
            M, element, mass, factor, qvel, qfrc_smooth, qacc_smooth, qacc_warmstart, world, inside, worlds,
            tolerance, ls_tolerance, iterations, ls_iterations, N,
        )  # fmt: skip
        store_vector(qacc_out, qacc, nv, world, inside, worlds)
        store_vector(qfrc_out, force, nv, world, inside, worlds)
        tl.store(niter_out + world, niter, mask=inside)
        tl.debug_barrier()
        group = tl.atomic_add(next_group, 1).to(tl.int64)


@triton.jit
def _solve_group(
    s, f, rows, M, element, mass, factor, qvel, qfrc_smooth, qacc_smooth, qacc_warmstart, world, inside, worlds,
    tolerance: tl.constexpr, ls_tolerance: tl.constexpr, iterations: tl.constexpr, ls_iterations: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """Accelerations, the rows' joint forces (N, W) and iterations (W,) of a group."""
    W: tl.constexpr = world.shape[0]
    filled = list_rows(s, f, rows.row, world, inside, worlds)
    rows = Rows(rows.jac, rows.weight, rows.aref, rows.residual, rows.rate, rows.row, tl.max(filled, 0))
    qacc = load_vector(qacc_smooth, s.nv, world, inside, worlds, N)
    force = tl.zeros_like(qacc)
    niter = tl.zeros((W,), tl.int32)
    if rows.count > 0:
        velocity = load_vector(qvel, s.nv, world, inside, worlds, N)
        make_rows(s, f, rows, filled, velocity, world, inside, worlds)
        tl.store(mass + matrix_at(N, W), load_mass(M, element, world, inside, worlds, N))
        smooth_force = load_vector(qfrc_smooth, s.nv, world, inside, worlds, N)
        warm = load_vector(qacc_warmstart, s.nv, world, inside, worlds, N)
        qacc, niter = newton(
            rows, mass, factor, filled > 0, smooth_force, qacc, warm,
            s.nv, tolerance, ls_tolerance, iterations, ls_iterations,
        )  # fmt: skip
        multiply(rows, qacc, rows.residual, True)
        force = -pull(rows, N, W)
    return qacc, force, niter


@triton.jit
def newton(
    rows, mass, factor, constrained, force, smooth, warm, nv: tl.constexpr, tolerance: tl.constexpr,
    ls_tolerance: tl.constexpr, iterations: tl.constexpr, ls_iterations: tl.constexpr,
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
    done = ~constrained | _certified(mass, factor, grad, scale, constrained, nv, tolerance)
    step = 0
    while (step < iterations) & anywhere(~done):
        hessian = add_stiffness(rows, tl.load(mass + matrix_at(N, W)))
        search = solve_symmetric(hessian, -grad, factor, nv)
        decrement = -0.5 * dot(grad, search)
        done = done | ((step > 0) & ~(scale * decrement >= tolerance))

        search_momentum = _momentum(mass, search)
        multiply(rows, search, rows.rate, False)
        line = Line(rows, dot(search, momentum - force), 0.5 * dot(search, search_momentum))
        length = tl.sqrt(dot(search, search))
        slope_tolerance = tolerance * ls_tolerance * length / scale
        found = search_line(line, slope_tolerance, done | (length < MINVAL), ls_iterations)

        done = done | (found.alpha == 0)
        alpha = tl.where(done, 0.0, found.alpha)
        qacc = tl.where(done[None, :], qacc, qacc + alpha[None, :] * search)
        momentum = tl.where(done[None, :], momentum, momentum + alpha[None, :] * search_momentum)
        move(rows, alpha, done)
        grad = momentum - force + pull(rows, N, W)
        niter += (~done).to(tl.int32)
        improvement = -scale * found.cost
        slope = scale * tl.sqrt(dot(grad, grad))
        done = done | ((improvement > 0) & (improvement < tolerance)) | ~(slope >= tolerance)
        step += 1
    return qacc, niter


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
    flat = constrained & (scale * tl.sqrt(dot(grad, grad)) < tolerance)
    if anywhere(flat):
        inverse = solve_symmetric(tl.load(mass + matrix_at(grad.shape[0], grad.shape[1])), grad, factor, nv)
        flat = flat & (scale * 0.5 * dot(grad, inverse) < tolerance)
    return flat
