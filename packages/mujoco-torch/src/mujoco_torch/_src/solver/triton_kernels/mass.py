"""The joint-space inertia of mass.py: the sparse matrix, its factor M = L' D L, and solves with it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..system import System
from . import launch
from .tables import tables_of
from .tiles import global_at, load_mass, load_vector, pick_column, pick_item, store_vector

_WORLDS = 128
"""Worlds of a program of `mass_matrix`, one a thread."""


def mass_matrix(crb: Tensor, cdof: Tensor, armature: Tensor, system: int) -> Tensor:
    """The operator `mass_matrix`."""
    s = System.of(system)
    worlds = cdof.shape[-1]
    crb, cdof, armature = launch.contiguous(crb, cdof, armature)
    M = cdof.new_empty((s.nC, worlds))
    if M.numel():
        t = tables_of(s, M.device)
        with launch.on_device(M):
            mass_kernel[(triton.cdiv(worlds, _WORLDS), s.nv)](
                crb, cdof, armature, M, t.M_rowadr, t.M_colind, t.dof_bodyid, worlds,
                nv=s.nv, nbody=s.nbody, W=_WORLDS, num_warps=_WORLDS // launch.LANES, enable_fp_fusion=True,
            )  # fmt: skip
    return M


def factor_m(M: Tensor, system: int) -> tuple[Tensor, Tensor]:
    """The operator `factor_m`."""
    s = System.of(system)
    worlds, n = M.shape[-1], launch.padded(s.nv)
    (M,) = launch.contiguous(M)
    qLD, qLDiagInv = torch.empty_like(M), M.new_empty((s.nv, worlds))
    if M.numel():
        w = max(1, 4 * launch.LANES // n)
        with launch.on_device(M):
            factor_kernel[(triton.cdiv(worlds, w),)](
                M, qLD, qLDiagInv, tables_of(s, M.device).element, worlds,
                nv=s.nv, N=n, W=w, num_warps=launch.warps(n * n * w, M.dtype), enable_fp_fusion=True,
            )  # fmt: skip
    return qLD, qLDiagInv


def solve_m(qLD: Tensor, qLDiagInv: Tensor, b: Tensor, system: int) -> Tensor:
    """The operator `solve_m`."""
    s = System.of(system)
    worlds, n = b.shape[-1], launch.padded(s.nv)
    qLD, qLDiagInv, b = launch.contiguous(qLD, qLDiagInv, b)
    x = torch.empty_like(b)
    if x.numel():
        w = launch.LANES
        with launch.on_device(x):
            solve_kernel[(triton.cdiv(worlds, w),)](
                qLD, qLDiagInv, b, x, tables_of(s, x.device).element, worlds,
                nv=s.nv, N=n, W=w, num_warps=launch.warps(n * w, x.dtype), enable_fp_fusion=True,
            )  # fmt: skip
    return x


@triton.jit
def mass_kernel(
    crb, cdof, armature, mass, rowadr, colind, bodyid, worlds: tl.int64,
    nv: tl.constexpr, nbody: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """One row of M in each program: M[i, j] = cdof_j . crb(body of i) cdof_i, plus armature."""
    world = tl.program_id(0).to(tl.int64) * W + tl.arange(0, W)
    inside = world < worlds
    i = tl.program_id(1)
    body = tl.load(bodyid + i)
    xx, yy, zz = _three(crb, 0, nbody, body, world, inside, worlds)
    xy, xz, yz = _three(crb, 3, nbody, body, world, inside, worlds)
    mx, my, mz = _three(crb, 6, nbody, body, world, inside, worlds)
    m = tl.load(crb + global_at(9 * nbody + body, world, worlds), mask=inside, other=0)
    v0, v1, v2 = _three(cdof, 0, nv, i, world, inside, worlds)
    v3, v4, v5 = _three(cdof, 3, nv, i, world, inside, worlds)
    f0 = xx * v0 + xy * v1 + xz * v2 - mz * v4 + my * v5
    f1 = xy * v0 + yy * v1 + yz * v2 + mz * v3 - mx * v5
    f2 = xz * v0 + yz * v1 + zz * v2 - my * v3 + mx * v4
    f3 = mz * v1 - my * v2 + m * v3
    f4 = mx * v2 - mz * v0 + m * v4
    f5 = my * v0 - mx * v1 + m * v5
    last = tl.load(rowadr + i + 1)
    for e in range(tl.load(rowadr + i), last):
        j = tl.load(colind + e)
        a0, a1, a2 = _three(cdof, 0, nv, j, world, inside, worlds)
        a3, a4, a5 = _three(cdof, 3, nv, j, world, inside, worlds)
        total = a0 * f0 + a1 * f1 + a2 * f2 + a3 * f3 + a4 * f4 + a5 * f5
        if e + 1 == last:
            total += tl.load(armature + i)
        tl.store(mass + global_at(e, world, worlds), total, mask=inside)


@triton.jit
def _three(source, first, items, item, world, inside, worlds):
    """Components `first` to `first + 2` of an item, each (W,), of a tensor (components, items, B)."""
    x = tl.load(source + global_at(first * items + item, world, worlds), mask=inside, other=0)
    y = tl.load(source + global_at((first + 1) * items + item, world, worlds), mask=inside, other=0)
    z = tl.load(source + global_at((first + 2) * items + item, world, worlds), mask=inside, other=0)
    return x, y, z


@triton.jit
def factor_kernel(
    mass, factor, inverse, element, worlds: tl.int64, nv: tl.constexpr, N: tl.constexpr, W: tl.constexpr
):
    """L and D of M = L' D L, in the elements of M, and 1 / D, from the last dof to the first."""
    world = tl.program_id(0).to(tl.int64) * W + tl.arange(0, W)
    inside = world < worlds
    dof = tl.arange(0, N)[:, None]
    a = load_mass(mass, element, world, inside, worlds, N)
    for step in range(nv):
        k = nv - 1 - step
        column, pivot = pick_column(a, k)
        column = tl.where(dof < k, column, 0.0)
        unit = column / pivot[None, :]
        a -= column[:, None, :] * unit[None, :, :]
        e = tl.load(element + k * N + dof)
        at = global_at(e, world[None, :], worlds)
        used = (e >= 0) & (dof <= k) & inside[None, :]
        tl.store(factor + at, tl.where(dof == k, pivot[None, :], unit), mask=used)
        tl.store(inverse + k * worlds + world, 1 / pivot, mask=inside)


@triton.jit
def solve_kernel(
    factor, inverse, b, x, element, worlds: tl.int64, nv: tl.constexpr, N: tl.constexpr, W: tl.constexpr
):
    """x of L' D L x = b."""
    world = tl.program_id(0).to(tl.int64) * W + tl.arange(0, W)
    inside = world < worlds
    dof = tl.arange(0, N)[:, None]
    y = load_vector(b, nv, world, inside, worlds, N)
    for step in range(nv):
        k = nv - 1 - step
        y -= _row(factor, element, k, world, inside, worlds, N) * pick_item(y, k)[None, :]
    y *= load_vector(inverse, nv, world, inside, worlds, N)
    for k in range(nv):
        row = _row(factor, element, k, world, inside, worlds, N)
        y = tl.where(dof == k, tl.sum(tl.where(dof == k, y, -row * y), 0)[None, :], y)
    store_vector(x, y, nv, world, inside, worlds)


@triton.jit
def _row(factor, element, k, world, inside, worlds, N: tl.constexpr):
    """Row k (N, W) of L below its diagonal."""
    dof = tl.arange(0, N)[:, None]
    e = tl.load(element + k * N + dof)
    used = (e >= 0) & (dof < k) & inside[None, :]
    return tl.load(factor + global_at(e, world[None, :], worlds), mask=used, other=0)
