"""Dense Cholesky factor and solve of many small matrices, worlds last, in plain torch.

These are the reference: they run on any device, and the compiled kernel is tested against them.
"""

import torch
from torch import Tensor

MINVAL = 1e-15
"""Smallest pivot, MuJoCo's mjMINVAL. A pivot below it is replaced by it; NaN passes through."""


def chol_factor(a: Tensor) -> Tensor:
    """Lower Cholesky factor of symmetric positive definite matrices.

    `a` is (n, n, B); only its lower triangle is read. Returns L (n, n, B) with zeros above the diagonal, A = L L'.
    """
    n = a.shape[0]
    factor = torch.zeros_like(a, memory_format=torch.contiguous_format)
    for j in range(n):
        column = a[j:, j] - (factor[j:, :j] * factor[j, :j]).sum(1)
        pivot = torch.where(column[0] < MINVAL, MINVAL, column[0]).sqrt()
        factor[j, j] = pivot
        factor[j + 1 :, j] = column[1:] / pivot
    return factor


def chol_solve(factor: Tensor, b: Tensor) -> Tensor:
    """Solution x (n, B) of L L' x = b, given L (n, n, B) lower and b (n, B)."""
    n = b.shape[0]
    x = b.clone(memory_format=torch.contiguous_format)
    for i in range(n):
        x[i] = (x[i] - (factor[i, :i] * x[:i]).sum(0)) / factor[i, i]
    for i in reversed(range(n)):
        x[i] = (x[i] - (factor[i + 1 :, i] * x[i + 1 :]).sum(0)) / factor[i, i]
    return x


def hessian(mass: Tensor, jac: Tensor, weight: Tensor) -> Tensor:
    """M + J' diag(w) J (nv, nv, B), of M (nv, nv, B), J (nefc, nv, B) and w (nefc, B)."""
    rows = jac.movedim(-1, 0)
    gram = (rows * weight.T.unsqueeze(-1)).mT @ rows
    return mass + gram.movedim(0, -1)


def hessian_solve(mass: Tensor, jac: Tensor, weight: Tensor, b: Tensor) -> Tensor:
    """Solution x (nv, B) of (M + J' diag(w) J) x = b; M (nv, nv, B), J (nefc, nv, B), w (nefc, B), b (nv, B)."""
    return chol_solve(chol_factor(hessian(mass, jac, weight)), b)
