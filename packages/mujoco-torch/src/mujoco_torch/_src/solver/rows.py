"""Constraint rows and their Jacobian, worlds last, in plain torch.

Limits come first. A limit acts on one dof or on the three of a ball joint: its row of J holds an axis there. A contact
row is a wrench along the contact's normal, plus or minus friction times one more axis; about the centre of mass of a
tree, its row of J is the inner product with the motion axes of the dofs that move the contact.
"""

import torch
from torch import Tensor

from .system import System


def jacobian(
    system: System,
    cdof: Tensor,
    subtree_com: Tensor,
    contact_pos: Tensor,
    contact_frame: Tensor,
    row_edge: Tensor,
    limit_axis: Tensor,
) -> Tensor:
    """Jacobian J (nl + nrow, nv, B) of limits and contact rows.

    cdof (6, nv, B), subtree_com (3, nbody, B), contact_pos (3, ncon, B), contact_frame (9, ncon, B); row_edge (axes,
    nrow, 1), how far each contact row goes along each axis of its contact; limit_axis (3, nl, B or 1), of which a limit
    uses the first `limit_size`, for the dofs from `limit_dof` on.
    """
    parts = [_limit_rows(system, limit_axis, cdof)]
    for root, moved in system.numbered_sides:
        arm = contact_pos - root @ subtree_com
        wrench = (row_edge.unsqueeze(1) * _axes(system, arm, contact_frame)).sum(0)
        power = sum(wrench[k].unsqueeze(1) * cdof[k] for k in range(6))
        parts.append(moved.dense(cdof).unsqueeze(-1) * power)
    limits, *sides = parts
    if not sides:
        return torch.cat((limits, limits.new_zeros((system.rows, *limits.shape[1:]))))
    return torch.cat((limits, sum(sides[1:], sides[0])))


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


def _limit_rows(system: System, limit_axis: Tensor, like: Tensor) -> Tensor:
    """Rows (nl, nv, B) of the limits."""
    nl = system.limits
    axis = limit_axis.expand(3, nl, like.shape[-1])
    return (system.limit_place @ axis.reshape(3 * nl, like.shape[-1])).unflatten(0, (nl, system.nv))
