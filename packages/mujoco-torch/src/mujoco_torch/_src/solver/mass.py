"""The joint-space inertia in MuJoCo's sparse form, worlds last, in plain torch: the reference of the operators.

An element of row i stands in the column of a dof that dof i moves with. The factor is C's, ``M = L' D L`` with a unit
lower triangular L, which has the elements of M: in the order from the last dof to the first it is a Cholesky factor.
"""

import torch
from torch import Tensor

from mujoco_torch._src.components import Components

from ..spatial import dot, inertia_mul
from . import linalg
from .system import System


def mass_matrix(crb: Tensor, cdof: Tensor, armature: Tensor, system: int) -> Tensor:
    """M (nC, B) of crb (10, nbody, B), cdof (6, nv, B) and armature (nv, 1)."""
    s = System.of(system)
    force = inertia_mul(Components((s.dof_body @ crb).unbind(0)), Components(cdof.unbind(0))).stack()
    return dot(s.M_row @ force, s.M_col @ cdof) + s.M_diagonal @ armature


def full_m(mass: Tensor, system: System) -> Tensor:
    """Dense M (nv, nv, B)."""
    return (system.full_m @ mass).unflatten(0, (system.nv, system.nv))


def factor_m(mass: Tensor, system: int) -> tuple[Tensor, Tensor]:
    """qLD (nC, B), L with D on its diagonal, and qLDiagInv (nv, B), of M (nC, B)."""
    s = System.of(system)
    # From the last dof to the first it is a Cholesky factor: C C' with C = L' D^1/2, both turned round.
    factor = linalg.chol_factor(full_m(mass, s).flip(0, 1)).flip(0, 1)
    root = factor.diagonal(dim1=0, dim2=1).movedim(-1, 0)
    lower = (factor / root).transpose(0, 1)
    diagonal = root * root
    packed = s.full_m_place @ lower.flatten(0, 1)
    strict = 1.0 - s.M_diagonal @ torch.ones_like(root)
    return strict * packed + s.M_diagonal @ diagonal, 1 / diagonal


def solve_m(factor: Tensor, inverse: Tensor, b: Tensor, system: int) -> Tensor:
    """x (nv, B) of M x = b (nv, B)."""
    s = System.of(system)
    strict = s.M_diagonal @ torch.ones_like(inverse) == 0
    unit = full_m(torch.where(strict, factor, 1.0), s).movedim(-1, 0).tril()
    x = torch.linalg.solve_triangular(unit.mT, b.T.unsqueeze(-1), upper=True, unitriangular=True)
    x = torch.linalg.solve_triangular(unit, x * inverse.T.unsqueeze(-1), upper=False, unitriangular=True)
    return x.squeeze(-1).T.contiguous()
