"""Constraint rows and their Jacobian, worlds last, in plain torch.

Given rows come first, by their values. A contact row is a wrench: so far along each axis of the contact's frame. About
the centre of mass of a tree, its row of J is the inner product with the motion axes of the dofs that move the contact.
"""

import torch
from torch import Tensor

from .arguments import Factors
from .system import System


def jacobian(
    system: System,
    cdof: Tensor,
    subtree_com: Tensor,
    contact_pos: Tensor,
    contact_frame: Tensor,
    row_edge: Tensor,
    given_jac: Tensor,
) -> Tensor:
    """Jacobian J (nefc, nv, B) of given and contact rows.

    cdof (6, nv, B), subtree_com (3, nbody, B), contact_pos (3, ncon, B), contact_frame (9, ncon, B); row_edge (axes,
    nrow, 1), how far each contact row goes along each axis of its contact; given_jac (nJ, B or 1), the values of the
    given rows, row by row, each in the order of `given_dofs`.
    """
    parts = [_given_rows(system, given_jac, cdof)]
    for root, moved in system.numbered_sides:
        arm = contact_pos - root @ subtree_com
        wrench = (row_edge.unsqueeze(1) * _axes(system, arm, contact_frame)).sum(0)
        power = sum(wrench[k].unsqueeze(1) * cdof[k] for k in range(6))
        parts.append(moved.dense(cdof).unsqueeze(-1) * power)
    given, *sides = parts
    if not sides:
        return torch.cat((given, given.new_zeros((system.rows, *given.shape[1:]))))
    return torch.cat((given, sum(sides[1:], sides[0])))


def make_rows(system: System, x: Factors) -> tuple[Tensor, Tensor, Tensor]:
    """J (nefc, nv, B), weight D (nefc, B) and reference (nefc, B) of all rows."""
    J = jacobian(system, x.cdof, x.subtree_com, x.contact_pos, x.contact_frame, x.row_edge, x.given_jac)
    weight, reference = row_weight(system, x.given_D, x.contact_D, x.row_scale), x.given_ref
    if system.rows:
        along = system.row_contact @ x.contact_ref
        reference = torch.cat((reference, (x.row_edge[: along.shape[0]] * along).sum(0)))
    return J, weight, reference


def row_weight(system: System, given_D: Tensor, contact_D: Tensor, row_scale: Tensor) -> Tensor:
    """D (nefc, B) of all rows; a contact's rows have that of the contact times `row_scale` (nrow, 1)."""
    if not system.rows:
        return given_D
    return torch.cat((given_D, row_scale * (system.row_contact @ contact_D)))


def _axes(system: System, arm: Tensor, frame: Tensor) -> Tensor:
    """Unit wrenches (axes, 6, nrow, B) along, then about the axes of the contact of each row."""
    axes = []
    for k in range(system.axes):
        along = frame[3 * (k % 3) : 3 * (k % 3) + 3]
        if k < 3:
            axes.append(torch.cat((torch.linalg.cross(arm, along, dim=0), along)))
        else:
            axes.append(torch.cat((along, torch.zeros_like(along))))
    return system.row_contact @ torch.stack(axes)


def _given_rows(system: System, given_jac: Tensor, like: Tensor) -> Tensor:
    """Given rows (ngiven, nv, B)."""
    values = given_jac.expand(system.nJ, like.shape[-1])
    return (system.given_place @ values).unflatten(0, (system.ngiven, system.nv))
