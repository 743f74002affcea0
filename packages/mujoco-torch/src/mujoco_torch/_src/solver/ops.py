"""The solver's operators: torch.ops.mujoco_torch.{chol_factor, chol_solve, hessian_solve, solve}.

Each has a reference in torch (any device), a CPU kernel where a C++ compiler is found, a fake for tracing, a gradient
and a vmap rule that appends the mapped dimension to the worlds. All tensors are float32 or float64, on one device, with
the world as their last dimension; they need not be contiguous.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from . import kernels, linalg
from .newton import solve as solve_reference
from .rows import jacobian, jacobian_transposed

_FLOATS = (torch.float32, torch.float64)


def chol_factor(a: Tensor) -> Tensor:
    """Lower Cholesky factor L (n, n, B), zeros above the diagonal, of symmetric positive definite A (n, n, B).

    Only A's lower triangle is read; its gradient is symmetric, as if A were a function of its symmetric part.
    """
    return _chol_factor(a)


def chol_solve(factor: Tensor, b: Tensor) -> Tensor:
    """Solution x (n, B) of L L' x = b, given L (n, n, B) from `chol_factor` and b (n, B)."""
    return _chol_solve(factor, b)


def hessian_solve(mass: Tensor, jac: Tensor, weight: Tensor, b: Tensor) -> Tensor:
    """Solution x (nv, B) of (M + J' diag(w) J) x = b; M (nv, nv, B), J (nefc, nv, B), w (nefc, B), b (nv, B).

    With no rows (nefc 0) this is a solve with M that keeps no factor. The gradient to M is symmetric.
    """
    return _hessian_solve(mass, jac, weight, b)


def solve(
    mass: Tensor,
    cdof: Tensor,
    wrench: Tensor,
    moved: Tensor,
    limit_axis: Tensor,
    limit_dof: Sequence[int],
    limit_size: Sequence[int],
    weight: Tensor,
    aref: Tensor,
    qfrc_smooth: Tensor,
    qacc_smooth: Tensor,
    qacc_warmstart: Tensor,
    *,
    tolerance: float,
    ls_tolerance: float,
    iterations: int,
    ls_iterations: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Constrained accelerations qacc (nv, B), row forces efc_force (nl + nc, B), their joint forces, and iterations.

    Minimises 1/2 (a - a_s)' M (a - a_s) + sum_i 1/2 D_i min(0, J_i a - aref_i)^2, where `jacobian` says what J is: nl
    limits of limit_axis (3, nl, B) at the static limit_dof, limit_size, then nc contact rows of wrench (S, 6, nc, B),
    cdof (6, nv, B) and the static moved (S, nc, nv). M (nv, nv, B), D (nl + nc, B; zero for an inactive row),
    aref (nl + nc, B), a_s = M^-1 qfrc_smooth. `qacc_smooth` and `qacc_warmstart` (nv, B) are only starting points.
    At the returned qacc, efc_force_i = -D_i min(0, J_i a - aref_i) and qfrc_constraint (nv, B) = J' efc_force; the
    iterations are (B,) int32.

    No gradient flows to moved and the starting points. The gradient to the others is that of the optimum (implicit
    differentiation with the final active rows), whatever the iterations did. See newton.py for the algorithm.
    """
    return _solve(
        mass, cdof, wrench, moved, limit_axis, list(limit_dof), list(limit_size), weight, aref, qfrc_smooth,
        qacc_smooth, qacc_warmstart, float(tolerance), float(ls_tolerance), int(iterations), int(ls_iterations),
    )  # fmt: skip


# ---- operators


@torch.library.custom_op("mujoco_torch::chol_factor", mutates_args=())
def _chol_factor(a: Tensor) -> Tensor:
    _check("chol_factor", a.shape[-1], A=(a, a.shape[0], a.shape[0]))
    if kernels.usable(a):
        return kernels.chol_factor(a)
    return linalg.chol_factor(a)


@torch.library.custom_op("mujoco_torch::chol_solve", mutates_args=())
def _chol_solve(factor: Tensor, b: Tensor) -> Tensor:
    n = b.shape[0]
    _check("chol_solve", b.shape[-1], L=(factor, n, n), b=(b, n))
    if kernels.usable(b):
        return kernels.chol_solve(factor, b)
    return linalg.chol_solve(factor, b)


@torch.library.custom_op("mujoco_torch::hessian_solve", mutates_args=())
def _hessian_solve(mass: Tensor, jac: Tensor, weight: Tensor, b: Tensor) -> Tensor:
    nv, nefc = b.shape[0], jac.shape[0]
    _check("hessian_solve", b.shape[-1], M=(mass, nv, nv), J=(jac, nefc, nv), w=(weight, nefc), b=(b, nv))
    if kernels.usable(b):
        return kernels.hessian_solve(mass, jac, weight, b)
    return linalg.hessian_solve(mass, jac, weight, b)


@torch.library.custom_op("mujoco_torch::solve", mutates_args=())
def _solve(
    mass: Tensor,
    cdof: Tensor,
    wrench: Tensor,
    moved: Tensor,
    limit_axis: Tensor,
    limit_dof: Sequence[int],
    limit_size: Sequence[int],
    weight: Tensor,
    aref: Tensor,
    qfrc_smooth: Tensor,
    qacc_smooth: Tensor,
    qacc_warmstart: Tensor,
    tolerance: float,
    ls_tolerance: float,
    iterations: int,
    ls_iterations: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    nv, nl, (sides, nc) = mass.shape[0], len(limit_dof), moved.shape[:2]
    _check_limits(limit_dof, limit_size, nv)
    _check(
        "solve", mass.shape[-1], M=(mass, nv, nv), cdof=(cdof, 6, nv), wrench=(wrench, sides, 6, nc),
        limit_axis=(limit_axis, 3, nl), D=(weight, nl + nc), aref=(aref, nl + nc), qfrc_smooth=(qfrc_smooth, nv),
        qacc_smooth=(qacc_smooth, nv), qacc_warmstart=(qacc_warmstart, nv),
    )  # fmt: skip
    _check_one("solve", "moved", moved, (sides, nc, nv), mass)
    if nv == 0 or nl + nc == 0:
        return (
            _clone(qacc_smooth), torch.zeros_like(weight, memory_format=torch.contiguous_format),
            torch.zeros_like(qacc_smooth, memory_format=torch.contiguous_format),
            qacc_smooth.new_zeros(mass.shape[-1], dtype=torch.int32),
        )  # fmt: skip
    rows = (cdof, wrench, moved, limit_axis, limit_dof, limit_size, weight, aref)
    run = kernels.solve if kernels.usable(mass) else solve_reference
    return run(
        mass, *rows, qfrc_smooth, qacc_smooth, qacc_warmstart,
        tolerance=tolerance, ls_tolerance=ls_tolerance, iterations=iterations, ls_iterations=ls_iterations,
    )  # fmt: skip


def _check_limits(limit_dof: Sequence[int], limit_size: Sequence[int], nv: int) -> None:
    """Raise unless every limit acts on one dof or three, all of them among the nv."""
    if len(limit_dof) != len(limit_size):
        raise ValueError(f"solve: {len(limit_dof)} limit_dof, but {len(limit_size)} limit_size")
    for dof, size in zip(limit_dof, limit_size, strict=True):
        if size not in (1, 3) or not 0 <= dof <= nv - size:
            raise ValueError(
                f"solve: a limit of size {size} at dof {dof}; sizes are 1 and 3, dofs below {nv}"
            )


def _check(op: str, worlds: int, **arguments: tuple) -> None:
    """Raise unless every argument (tensor, *sizes) has those sizes, then the worlds, and all share dtype and device."""
    first = next(iter(arguments.values()))[0]
    if first.dtype not in _FLOATS:
        raise ValueError(f"{op}: dtype {first.dtype} is not supported, use torch.float32 or torch.float64")
    for name, (x, *sizes) in arguments.items():
        _check_one(op, name, x, (*sizes, worlds), first, " (worlds last)")


def _check_one(op: str, name: str, x: Tensor, shape: tuple[int, ...], like: Tensor, note: str = "") -> None:
    if x.shape != shape:
        raise ValueError(f"{op}: {name} has shape {tuple(x.shape)}, expected {shape}{note}")
    if x.dtype != like.dtype or x.device != like.device:
        raise ValueError(f"{op}: {name} is {x.dtype} on {x.device}, others are {like.dtype} on {like.device}")


def _clone(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


# ---- fakes: outputs are contiguous whatever the inputs are


@_chol_factor.register_fake
def _(a):
    return a.new_empty(a.shape)


@_chol_solve.register_fake
def _(factor, b):
    return b.new_empty(b.shape)


@_hessian_solve.register_fake
def _(mass, jac, weight, b):
    return b.new_empty(b.shape)


@_solve.register_fake
def _(
    mass, cdof, wrench, moved, limit_axis, limit_dof, limit_size, weight, aref, qfrc_smooth, qacc_smooth,
    qacc_warmstart, tolerance, ls_tolerance, iterations, ls_iterations,
):  # fmt: skip
    qacc, niter = qacc_smooth.new_empty(qacc_smooth.shape), mass.new_empty(mass.shape[-1], dtype=torch.int32)
    return qacc, weight.new_empty(weight.shape), torch.empty_like(qacc), niter


# ---- gradients


def _symmetric(x: Tensor) -> Tensor:
    return 0.5 * (x + x.transpose(0, 1))


def _outer(x: Tensor, y: Tensor) -> Tensor:
    return x.unsqueeze(1) * y.unsqueeze(0)


def _row_products(jac: Tensor, x: Tensor) -> Tensor:
    return (jac * x).sum(1)


def _chol_factor_setup(ctx, inputs, output):
    ctx.save_for_backward(output)


def _chol_factor_backward(ctx, grad):
    """dA = sym(L^-T Phi(L' dL) L^-1), Phi taking the lower triangle with its diagonal halved (Murray 2016, eq. 9)."""
    (factor,) = ctx.saved_tensors
    lower = factor.movedim(-1, 0)
    inner = (lower.mT @ grad.movedim(-1, 0).tril()).tril()
    inner = inner - 0.5 * torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1))
    half = torch.linalg.solve_triangular(lower.mT, inner, upper=True)
    full = torch.linalg.solve_triangular(lower, half, upper=False, left=False)
    return _symmetric(full.movedim(0, -1))


def _chol_solve_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], output)


def _chol_solve_backward(ctx, grad):
    """With y = A^-1 g: db = y and dL = -(y x' + x y') L, its lower triangle."""
    factor, x = ctx.saved_tensors
    y = chol_solve(factor, grad)
    x_factor, y_factor = (factor * x.unsqueeze(1)).sum(0), (factor * y.unsqueeze(1)).sum(0)
    full = _outer(y, x_factor) + _outer(x, y_factor)
    return -full.movedim(-1, 0).tril().movedim(0, -1), y


def _hessian_solve_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], output)


def _hessian_solve_backward(ctx, grad):
    """With y = H^-1 g: db = y, dM = -y x', dw_i = -(J y)_i (J x)_i, dJ_i = -w_i ((J x)_i y' + (J y)_i x')."""
    mass, jac, weight, x = ctx.saved_tensors
    y = hessian_solve(mass, jac, weight, grad)
    jac_x, jac_y = _row_products(jac, x), _row_products(jac, y)
    grad_jac = -(_outer(weight * jac_x, y) + _outer(weight * jac_y, x))
    return -_symmetric(_outer(y, x)), grad_jac, -jac_x * jac_y, y


def _solve_setup(ctx, inputs, output):
    mass, cdof, wrench, moved, limit_axis, limit_dof, limit_size, weight, aref = inputs[:9]
    ctx.save_for_backward(mass, cdof, wrench, moved, limit_axis, weight, aref, output[0])
    ctx.limits = limit_dof, limit_size
    ctx.mark_non_differentiable(output[3])
    ctx.set_materialize_grads(False)


def _solve_backward(ctx, grad_qacc, grad_efc_force, grad_qfrc, _grad_niter):
    """Differentiate M a - f + J' D r = 0 at the optimum, the forces p = -D r and J' p; r = J a - aref, rows with r < 0.

    With the gradients g_a, g_p and g_c of a, p and J' p, y = H^-1 (g_a - J' D (g_p + J g_c)) and z = y + g_c:
    df = y, dM = -y a', and with q = g_p + J z: daref = D q, dD = -r q, dJ_i = p_i z' - D_i q_i a'.
    """
    nones = (None,) * 16
    if grad_qacc is None and grad_efc_force is None and grad_qfrc is None:
        return nones
    mass, cdof, wrench, moved, limit_axis, weight, aref, qacc = ctx.saved_tensors
    grad_qacc, grad_qfrc = (torch.zeros_like(qacc) if g is None else g for g in (grad_qacc, grad_qfrc))
    grad_efc_force = torch.zeros_like(weight) if grad_efc_force is None else grad_efc_force
    jac = jacobian(cdof, wrench, moved, limit_axis, *ctx.limits)
    residual = _row_products(jac, qacc) - aref
    active = (residual < 0) & (weight > 0)
    stiffness = torch.where(active, weight, 0)

    direct = stiffness * (grad_efc_force + _row_products(jac, grad_qfrc))
    y = hessian_solve(mass, jac, stiffness, grad_qacc - (jac * direct.unsqueeze(1)).sum(0))
    z = y + grad_qfrc
    q = grad_efc_force + _row_products(jac, z)
    grad_jac = -(_outer(stiffness * residual, z) + _outer(stiffness * q, qacc))
    grad_cdof, grad_wrench, grad_axis = jacobian_transposed(grad_jac, cdof, wrench, moved, *ctx.limits)
    grad_weight = torch.where(active, -residual * q, 0)
    rows = (grad_cdof, grad_wrench, None, grad_axis, None, None, grad_weight, stiffness * q)
    return -_symmetric(_outer(y, qacc)), *rows, y, *nones[:6]


_chol_factor.register_autograd(_chol_factor_backward, setup_context=_chol_factor_setup)
_chol_solve.register_autograd(_chol_solve_backward, setup_context=_chol_solve_setup)
_hessian_solve.register_autograd(_hessian_solve_backward, setup_context=_hessian_solve_setup)
_solve.register_autograd(_solve_backward, setup_context=_solve_setup)


# ---- vmap: mapped worlds are more worlds


def _merge(x: Tensor, dim: int | None, count: int) -> Tensor:
    """(..., B) with a mapped dimension anywhere, or without one, as (..., count * B)."""
    x = x.unsqueeze(-2).expand(*x.shape[:-1], count, x.shape[-1]) if dim is None else x.movedim(dim, -2)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def _split(x: Tensor, count: int) -> Tensor:
    return x.reshape(*x.shape[:-1], count, x.shape[-1] // count)


def _vmap_rule(op, shared: str = "", at: int = -1):
    """The rule of `op`, whose argument number `at`, named `shared`, has no worlds and cannot be mapped."""

    def rule(info, in_dims: Sequence[int | None], *args):
        count = info.batch_size
        if shared and in_dims[at] is not None:
            raise ValueError(
                f"vmap: {shared} is the same in all worlds and cannot be mapped; use in_dims None for it"
            )
        merged = [
            _merge(x, dim, count) if isinstance(x, Tensor) and i != at else x
            for i, (x, dim) in enumerate(zip(args, in_dims, strict=True))
        ]
        out = op(*merged)
        if isinstance(out, Tensor):
            return _split(out, count), out.dim() - 1
        return tuple(_split(x, count) for x in out), tuple(x.dim() - 1 for x in out)

    return rule


for _op in (_chol_factor, _chol_solve, _hessian_solve):
    _op.register_vmap(_vmap_rule(_op))
_solve.register_vmap(_vmap_rule(_solve, "moved", 3))
