"""The operators of the dynamics problem: mass_matrix, factor_m, solve_m, solve and noslip, with their gradients.

All tensors are float32 or float64, on one device, with the world as their last dimension; they need not be contiguous.
"""

from typing import Any

import torch
from torch import Tensor

from mujoco_torch._src import ops

from . import linalg, mass, newton
from . import noslip as pass_
from .arguments import ROWS, SHARED, Arguments, Factors
from .penalty import Penalty, make_penalty
from .rows import make_rows
from .system import System

_FLOATS = (torch.float32, torch.float64)
_TRITON = f"{__package__}.triton_kernels"


def mass_matrix(system: System, crb: Tensor, cdof: Tensor, armature: Tensor) -> Tensor:
    """Sparse inertia M (nC, B) of composite inertias (10, nbody, B), motion axes (6, nv, B), armature (nv, 1)."""
    _check("mass_matrix", cdof.shape[-1], cdof=(cdof, 6, system.nv), crb=(crb, 10, system.nbody))
    _check_one("mass_matrix", "armature", armature, (system.nv, 1), cdof)
    return _mass_matrix(crb, cdof, armature, system.key)


def factor_m(system: System, M: Tensor) -> tuple[Tensor, Tensor]:
    """qLD (nC, B) and qLDiagInv (nv, B) of M = L' D L: L unit lower, with D on its diagonal; no gradient."""
    _check("factor_m", M.shape[-1], M=(M, system.nC))
    return _factor_m(M.detach(), system.key)


def solve_m(system: System, M: Tensor, qLD: Tensor, qLDiagInv: Tensor, b: Tensor) -> Tensor:
    """x (nv, B) of M x = b, with the factor of M at hand; the gradient goes to M and b."""
    nv, nC = system.nv, system.nC
    _check("solve_m", b.shape[-1], M=(M, nC), qLD=(qLD, nC), qLDiagInv=(qLDiagInv, nv), b=(b, nv))
    return _solve_m(M, qLD, qLDiagInv, b, system.key)


def solve(system: System, *arguments: Tensor, **named: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Constrained accelerations qacc (nv, B), the rows' joint forces qfrc_constraint (nv, B), and niter (B,) int32.

    Minimises 1/2 (a - a_s)' M (a - a_s) + sum_i s_i(J_i (a + damping_i qvel) - reference_i), with the cost s of each
    row or cone (docs/solver.md). It takes `Arguments`, in their order or by name.

    Only what is active costs time. Gradients are those of the optimum, whatever the iterations; qacc_warmstart and
    qacc_smooth, where the iterations start, have none.
    """
    given = Arguments(*arguments, **named)
    rows = _check_rows("solve", system, *given[: len(ROWS)])
    joint = {name: x for name, x in given._asdict().items() if name not in ROWS}
    _check(
        "solve", given.M.shape[-1], M=(given.M, system.nC), **{n: (x, system.nv) for n, x in joint.items()}
    )
    return _solve(*rows, *joint.values(), system.key)


def noslip(system: System, *arguments: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """qacc and qfrc_constraint (nv, B), forces (nefc, B) of all rows and sweeps (B,) int32 of the no-slip pass.

    Takes what `solve` takes, up to qvel, then qacc_smooth and the qacc (nv, B) that `solve` found. Gradients go
    through all sweeps; there are no second ones.
    """
    *rows, qacc_smooth, qacc = arguments
    rows, nv = _check_rows("noslip", system, *rows), system.nv
    _check("noslip", qacc.shape[-1], M=(rows[0], system.nC), qacc_smooth=(qacc_smooth, nv), qacc=(qacc, nv))
    return _noslip(*rows, qacc_smooth, qacc, system.key)


def _check_rows(op: str, system: System, *rows: Tensor) -> list[Tensor]:
    """The arguments of `ROWS`, fit for `vmap`."""
    given = dict(zip(ROWS, rows, strict=True))
    M, nv, ncon, ngiven = rows[0], system.nv, system.contacts, system.ngiven
    shared = dict(
        row_edge=(system.axes, system.rows), row_scale=(system.rows,), damping=(system.nefc,),
        cone_friction=(system.axes if system.cone else 0, ncon), frictionloss=(system.nf,),
    )  # fmt: skip
    each = dict(
        M=(system.nC,), cdof=(6, nv), subtree_com=(3, system.nbody), contact_pos=(3, ncon), contact_frame=(9, ncon),
        given_D=(ngiven,), given_ref=(ngiven,), contact_D=(ncon,), qvel=(nv,),
        contact_ref=(system.axes if given["contact_ref"].shape[0] > 1 else 1, ncon),
    )  # fmt: skip
    _check(op, M.shape[-1], **{name: (given[name], *sizes) for name, sizes in each.items()})
    for name, sizes in shared.items():
        _check_one(op, name, given[name], (*sizes, 1), M)
    jac = given["given_jac"]
    _check_one(op, "given_jac", jac, (system.nJ, 1 if jac.shape[-1] == 1 else M.shape[-1]), M)
    if torch._C._are_functorch_transforms_active():
        given["given_jac"] = jac.expand(-1, M.shape[-1])  # vmap multiplies the worlds of every argument
    return list(given.values())


def _check(op: str, worlds: int, **arguments: tuple) -> None:
    """Raise unless every argument (tensor, *sizes) has those sizes, then the worlds, and all share dtype and device."""
    first = next(iter(arguments.values()))[0]
    if first.dtype not in _FLOATS:
        raise ValueError(f"{op}: dtype {first.dtype} is not supported, use torch.float32 or torch.float64")
    for name, (x, *sizes) in arguments.items():
        _check_one(op, name, x, (*sizes, worlds), first, " (worlds last)")


def _check_one(op: str, name: str, x: Tensor, shape: tuple[int, ...], like: Tensor, note: str = "") -> None:
    if tuple(x.shape) != shape:
        raise ValueError(f"{op}: {name} has shape {tuple(x.shape)}, expected {shape}{note}")
    if x.dtype != like.dtype or x.device != like.device:
        raise ValueError(f"{op}: {name} is {x.dtype} on {x.device}, others are {like.dtype} on {like.device}")


# ---- operators; fakes: outputs are contiguous whatever the inputs are

_mass_matrix_operator = ops.define(
    "mass_matrix(Tensor crb, Tensor cdof, Tensor armature, int system) -> Tensor",
    mass.mass_matrix,
    lambda crb, cdof, armature, system: cdof.new_empty((System.of(system).nC, cdof.shape[-1])),
    shared=(2,),
    cuda=_TRITON,
)
_factor_m = ops.define(
    "factor_m(Tensor M, int system) -> (Tensor, Tensor)",
    mass.factor_m,
    lambda M, system: (M.new_empty(M.shape), M.new_empty((System.of(system).nv, M.shape[-1]))),
    cuda=_TRITON,
)
_solve_m_operator = ops.define(
    "solve_m(Tensor qLD, Tensor qLDiagInv, Tensor b, int system) -> Tensor",
    mass.solve_m,
    lambda qLD, qLDiagInv, b, system: b.new_empty(b.shape),
    cuda=_TRITON,
)
_hessian_solve_operator = ops.define(
    "hessian_solve(Tensor M, Tensor J, Tensor w, Tensor b) -> Tensor",
    linalg.hessian_solve,
    lambda M, J, w, b: b.new_empty(b.shape),
)
_ROWS_SCHEMA = ", ".join(f"Tensor {name}" for name in ROWS)
_solve_operator = ops.define(
    f"solve({_ROWS_SCHEMA}, Tensor qfrc_smooth, Tensor qacc_smooth, Tensor qacc_warmstart, int system) -> "
    "(Tensor, Tensor, Tensor)",
    newton.solve,
    lambda M, *rest: (
        rest[-2].new_empty(rest[-2].shape),
        rest[-2].new_empty(rest[-2].shape),
        M.new_empty(M.shape[-1], dtype=torch.int32),
    ),
    shared=SHARED,
    cuda=_TRITON,
)
_noslip_operator = ops.define(
    f"noslip({_ROWS_SCHEMA}, Tensor qacc_smooth, Tensor qacc, int system) -> (Tensor, Tensor, Tensor, Tensor)",
    pass_.noslip,
    lambda M, *rest: (
        rest[-2].new_empty(rest[-2].shape),
        rest[-2].new_empty(rest[-2].shape),
        M.new_empty((System.of(rest[-1]).nefc, M.shape[-1])),
        M.new_empty(M.shape[-1], dtype=torch.int32),
    ),
    shared=SHARED,
)
_noslip_grad = ops.define(
    f"noslip_grad({_ROWS_SCHEMA}, Tensor qacc_smooth, Tensor qacc, Tensor grad_qacc, Tensor grad_qfrc, "
    f"Tensor grad_force, int system) -> ({', '.join(18 * ['Tensor'])})",
    pass_.noslip_grad,
    lambda *x: tuple(y.new_empty((*y.shape[:-1], x[0].shape[-1])) for y in x[:18]),
    shared=SHARED,
    kernel=False,
)


# ---- gradients


def _packed(x: Tensor, y: Tensor, system: System) -> Tensor:
    """x y' + y x' at the elements of the sparse inertia, each counted once: the gradient of x' M y for symmetric M."""
    row, col = system.M_row, system.M_col
    product = (row @ x) * (col @ y)
    twice = product + (row @ y) * (col @ x)
    diagonal = system.M_diagonal @ torch.ones_like(x)
    return twice - diagonal * product


class _MassMatrix(torch.autograd.Function):
    @staticmethod
    def forward(*args):
        return _mass_matrix_operator(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:3])
        ctx.system = System.of(inputs[3])

    @staticmethod
    def backward(ctx, *grads):
        key = ctx.system.key
        pull = torch.func.vjp(lambda *x: mass.mass_matrix(*x, key), *ctx.saved_tensors)[1]
        return *pull(grads[0]), None

    @staticmethod
    def vmap(info, in_dims, *args):
        return ops.vmapped(_mass_matrix, (2,), info.batch_size, in_dims, args)


class _SolveM(torch.autograd.Function):
    """With y = M^-1 g: db = y, dM = -y x'."""

    @staticmethod
    def forward(M, qLD, qLDiagInv, b, system):
        return _solve_m_operator(qLD, qLDiagInv, b, system)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:3], output)
        ctx.system = System.of(inputs[4])

    @staticmethod
    def backward(ctx, *grads):
        M, qLD, qLDiagInv, x = ctx.saved_tensors
        y = _solve_m(M, qLD, qLDiagInv, grads[0], ctx.system.key)
        return -_packed(y, x, ctx.system), None, None, y, None

    @staticmethod
    def vmap(info, in_dims, *args):
        return ops.vmapped(_solve_m, (), info.batch_size, in_dims, args)


class _HessianSolve(torch.autograd.Function):
    """With y = H^-1 g: db = y, dM = -y x', dw = -(J x) (J y), dJ_i = -w_i ((J y)_i x' + (J x)_i y')."""

    @staticmethod
    def forward(*args):
        return _hessian_solve_operator(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:3], output)

    @staticmethod
    def backward(ctx, *grads):
        M, J, w, x = ctx.saved_tensors
        y = _hessian_solve(M, J, w, grads[0])
        rate_x, rate_y = _product(J, x), _product(J, y)
        return -_outer(y, x), -_outer(w * rate_y, x) - _outer(w * rate_x, y), -rate_x * rate_y, y

    @staticmethod
    def vmap(info, in_dims, *args):
        return ops.vmapped(_hessian_solve, (), info.batch_size, in_dims, args)


class _Solve(torch.autograd.Function):
    """Differentiate M a - f - J' p = 0 at the optimum and the forces J' p; p is the rows' force at J (a + b v) - ref.

    With the gradients g_a and g_c of a and J' p, S = -dp/dr, y = H^-1 (g_a - J' S J g_c) and z = y + g_c: df = y,
    dM = -y a', and all that makes J' p gets the gradient of z' J' p at fixed a.
    """

    @staticmethod
    def forward(*args):
        return _solve_operator(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:16], output[0])
        ctx.system = System.of(inputs[19])
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, *grads):
        grad_qacc, grad_qfrc, _ = grads
        if grad_qacc is None and grad_qfrc is None:
            return (None,) * 20
        M, *row_inputs, qacc = ctx.saved_tensors
        system = ctx.system
        grad_qacc, grad_qfrc = (torch.zeros_like(qacc) if g is None else g for g in (grad_qacc, grad_qfrc))

        def forces(*inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            J, weight, reference = make_rows(system, Factors(*inputs[:11]))
            friction, damping, loss, qvel = inputs[11:]
            residual = _product(J, qacc) + damping * _product(J, qvel) - reference
            penalty = make_penalty(system, weight, loss, friction)
            return (J * penalty.force(residual).unsqueeze(1)).sum(0), (J, residual, *penalty[1:])

        vjp: Any = torch.func.vjp  # its type knows no has_aux
        _, pull, (J, residual, *values) = vjp(forces, *row_inputs, has_aux=True)
        penalty = Penalty(system, *values)
        direct = (J * penalty.stiffen(residual, _product(J, grad_qfrc)).unsqueeze(1)).sum(0)
        rows, stiffness = penalty.hessian_rows(J, residual)
        y = _hessian_solve(mass.full_m(M, system), rows, stiffness, grad_qacc - direct)
        return -_packed(y, qacc, system), *pull(y + grad_qfrc), y, None, None, None

    @staticmethod
    def vmap(info, in_dims, *args):
        return ops.vmapped(_solve, SHARED, info.batch_size, in_dims, args)


class _NoSlip(torch.autograd.Function):
    @staticmethod
    def forward(*args):
        return _noslip_operator(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:-1])
        ctx.system = System.of(inputs[-1])
        ctx.mark_non_differentiable(output[3])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):
        inputs = ctx.saved_tensors
        each = _noslip_grad(*inputs, *grads[:3], ctx.system.key)
        pairs = zip(inputs, each, strict=True)
        return *(y.sum(-1, keepdim=True) if x.shape[-1] == 1 else y for x, y in pairs), None

    @staticmethod
    def vmap(info, in_dims, *args):
        return ops.vmapped(_noslip, SHARED, info.batch_size, in_dims, args)


def _product(J: Tensor, x: Tensor) -> Tensor:
    return (J * x).sum(1)


def _outer(x: Tensor, y: Tensor) -> Tensor:
    return x.unsqueeze(1) * y.unsqueeze(0)


_mass_matrix = ops.differentiable(_MassMatrix, _mass_matrix_operator)
_solve_m = ops.differentiable(_SolveM, lambda M, *rest: _solve_m_operator(*rest))
_hessian_solve = ops.differentiable(_HessianSolve, _hessian_solve_operator)
_solve = ops.differentiable(_Solve, _solve_operator)
_noslip = ops.differentiable(_NoSlip, _noslip_operator)
