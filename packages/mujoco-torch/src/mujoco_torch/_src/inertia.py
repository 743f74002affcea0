"""Joint-space inertia and its factor (``mj_crb``, ``mj_factorM``)."""

from torch import Tensor

from mujoco_torch._src.solver import chol_factor, chol_solve
from mujoco_torch._src.spatial import dot, inertia_mul
from mujoco_torch._src.stage import public
from mujoco_torch._src.types import InsideData, InsideModel


@public(reads=("cinert", "cdof"), writes=("crb", "M"))
def crb(m: InsideModel, d: InsideData) -> InsideData:
    """Composite rigid body inertia ``M`` (``mj_crb``).

    Source: Featherstone (2008), ch. 6: ``M[i, j] = cdof_j . crb(body i) cdof_i`` where dof j is an ancestor of dof i.

    Departures from C:
      1. ``M`` is dense and symmetric, C stores the lower triangle by rows (CSR).

    Raises:
      StateError: ``cinert`` or ``cdof`` does not fit the model.
    """
    # The inertia that a dof carries is that of all bodies it moves.
    force = inertia_mul(m.body_dof.T @ d.cinert, d.cdof)
    lower = m.dof_ancestor * dot(force[:, :, None], d.cdof[:, None])
    upper = m.dof_ancestor.transpose(0, 1) * dot(d.cdof[:, :, None], force[:, None])
    diagonal = m.dof_ancestor * m.dof_ancestor.transpose(0, 1)  # the identity: a dof is its own ancestor
    return d.replace(
        crb=m.body_descendants @ d.cinert, M=lower + (1.0 - diagonal) * upper + diagonal * m.dof_armature
    )


@public(reads=("M",), writes=("qLD",))
def factor_m(m: InsideModel, d: InsideData) -> InsideData:
    """Cholesky factor of ``M`` (``mj_factorM``).

    Departures from C:
      1. ``qLD`` is the dense lower factor of ``M = L L'``; C has the sparse ``L' D L``.

    Raises:
      StateError: ``M`` does not fit the model.
    """
    return d.replace(qLD=chol_factor(d.M))


def solve_m(d: InsideData, x: Tensor) -> Tensor:
    """``M^-1 x`` for a vector ``[nv, B]``, with the factor in ``d.qLD`` (``mj_solveM``)."""
    return chol_solve(d.qLD, x)
