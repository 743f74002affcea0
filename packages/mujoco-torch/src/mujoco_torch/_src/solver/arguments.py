"""What the solver is given."""

from collections import namedtuple
from typing import NamedTuple

from torch import Tensor


class Arguments(NamedTuple):
    """The tensors that the operator `solve` takes, with the worlds last; D is zero in what is not active."""

    M: Tensor
    """sparse inertia (nC, B)"""
    cdof: Tensor
    """motion axes (6, nv, B)"""
    subtree_com: Tensor
    """(3, nbody, B)"""
    contact_pos: Tensor
    """(3, ncon, B)"""
    contact_frame: Tensor
    """(9, ncon, B)"""
    row_edge: Tensor
    """how far each contact row goes along each axis of its contact (axes, nrow, 1); of a cone one axis by 1, and no
    gradient goes there"""
    given_jac: Tensor
    """values of the given rows (nJ, B or 1), row by row, each in the order of `System.given_dofs`"""
    given_D: Tensor
    """weight of the given rows (ngiven, B)"""
    given_ref: Tensor
    """the part of their reference that is not damping (ngiven, B)"""
    contact_D: Tensor
    """weight of each contact (ncon, B); a row's is that times `row_scale`"""
    contact_ref: Tensor
    """reference along the first R axes of each contact (R, ncon, B), R = 1 or all; a row's is the sum along its edge"""
    row_scale: Tensor
    """(nrow, 1), 1 for pyramids"""
    cone_friction: Tensor
    """mu, then the friction along each axis beside the normal (axes, ncon, 1); read of elliptic cones alone, (0, ncon,
    1) of pyramids"""
    damping: Tensor
    """of each row (ngiven + nrow, 1)"""
    frictionloss: Tensor
    """bound of the force of each friction row (nf, 1)"""
    qvel: Tensor
    """(nv, B)"""
    qfrc_smooth: Tensor
    """(nv, B)"""
    qacc_smooth: Tensor
    """(nv, B); where the iterations start, if that costs less than the warm start"""
    qacc_warmstart: Tensor
    """(nv, B)"""

    @property
    def factors(self) -> "Factors":
        """What J, D and the reference of the rows are made of."""
        return Factors(*self[1 : 1 + len(Factors._fields)])


Factors = namedtuple("Factors", Arguments._fields[1 : Arguments._fields.index("cone_friction")])

ROWS = Arguments._fields[: Arguments._fields.index("qfrc_smooth")]
"""The first arguments, which `noslip` takes too: the inertia, and what rows are made of."""

SHARED = tuple(
    ROWS.index(name) for name in ("row_edge", "row_scale", "cone_friction", "damping", "frictionloss")
)
"""Positions of those that are the same in all worlds."""

BY_AXIS = ("row_edge", "contact_ref", "cone_friction")
"""Those that begin with the axes of contacts."""
