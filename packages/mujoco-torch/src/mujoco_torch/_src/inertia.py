"""Joint-space inertia and its factor (``mj_crb``, ``mj_factorM``)."""

from torch import Tensor

from mujoco_torch._src import solver
from mujoco_torch._src.stage import public
from mujoco_torch._src.tendon import tendon_armature
from mujoco_torch._src.types import InsideData, InsideModel


@public(reads=("cinert", "cdof", "ten_J"), writes=("crb", "M"))
def crb(m: InsideModel, d: InsideData) -> InsideData:
    """Composite rigid body inertia ``M``, with the armature of tendons, in C's sparse form (``mj_makeM``).

    Source: Featherstone (2008), ch. 6: ``M[i, j] = cdof_j . crb(body i) cdof_i`` where dof j is an ancestor of dof i.

    Raises:
      StateError: ``cinert``, ``cdof`` or ``ten_J`` does not fit the model.
    """
    composite = m.body_descendants @ d.cinert
    M = solver.mass_matrix(m.system, composite, d.cdof, m.dof_armature)
    if m.tendon_inertia:
        M = M + tendon_armature(m, d)
    return d.replace(crb=composite, M=M)


@public(reads=("M",), writes=("qLD", "qLDiagInv"))
def factor_m(m: InsideModel, d: InsideData) -> InsideData:
    """Factor ``M = L' D L``, with the elements of M; no gradient flows through it (``mj_factorM``).

    Source: Featherstone (2008), ch. 6.5.

    Raises:
      StateError: ``M`` does not fit the model.
    """
    qLD, qLDiagInv = solver.factor_m(m.system, d.M)
    return d.replace(qLD=qLD, qLDiagInv=qLDiagInv)


def mul_m(m: InsideModel, d: InsideData, x: Tensor) -> Tensor:
    """``M x`` for a vector ``[nv, B]`` (``mj_mulM``)."""
    below = m.M_col_below.T @ (d.M * (m.M_row @ x))  # the transposed elements left of the diagonal
    return m.M_row.T @ (d.M * (m.M_col @ x)) + below


def solve_m(m: InsideModel, d: InsideData, x: Tensor) -> Tensor:
    """``M^-1 x`` for a vector ``[nv, B]``, with the factor in ``d`` (``mj_solveM``)."""
    return solver.solve_m(m.system, d.M, d.qLD, d.qLDiagInv, x)
