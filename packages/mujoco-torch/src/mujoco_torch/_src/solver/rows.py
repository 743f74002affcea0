"""Constraint rows in factored form, and the Jacobian they stand for, worlds last, in plain torch.

Limits come first. A limit acts on one dof or on the three of a ball joint: its row of J holds an axis there. A contact
row is a wrench (torque, force) about the centre of mass of a tree: its row of J is the inner product with the motion
axes of the dofs that move its bodies. Contacts between two trees have two sides, each about its own point.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def jacobian(
    cdof: Tensor,
    wrench: Tensor,
    moved: Tensor,
    limit_axis: Tensor,
    limit_dof: Sequence[int],
    limit_size: Sequence[int],
) -> Tensor:
    """Jacobian J (nl + nc, nv, B) of limits and contacts.

    cdof (6, nv, B); wrench (S, 6, nc, B) on S sides; moved (S, nc, nv), 1 or -1 where the dof moves that side, else 0;
    limit_axis (3, nl, B), of which a limit uses the first `limit_size` (1 or 3), for the dofs from `limit_dof` on.
    """
    columns = _limit_columns(limit_dof, limit_size, cdof)
    limits = (columns * limit_axis.unsqueeze(2)).sum(0)
    power = sum(wrench[:, k].unsqueeze(2) * cdof[k] for k in range(6))
    contacts = (moved.unsqueeze(-1) * power).sum(0)
    return torch.cat((limits, contacts))


def jacobian_transposed(
    grad: Tensor,
    cdof: Tensor,
    wrench: Tensor,
    moved: Tensor,
    limit_dof: Sequence[int],
    limit_size: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of cdof, wrench and limit_axis, given J's (nl + nc, nv, B)."""
    limits, contacts = grad.split((len(limit_dof), wrench.shape[2]))
    sides = moved.unsqueeze(-1) * contacts
    grad_cdof = torch.stack([(sides * wrench[:, k].unsqueeze(2)).sum((0, 1)) for k in range(6)])
    grad_wrench = torch.stack([(sides * cdof[k]).sum(2) for k in range(6)], 1)
    grad_axis = (_limit_columns(limit_dof, limit_size, cdof) * limits).sum(2)
    return grad_cdof, grad_wrench, grad_axis


def _limit_columns(limit_dof: Sequence[int], limit_size: Sequence[int], like: Tensor) -> Tensor:
    """0/1 matrices (3, nl, nv, 1): where component k of a limit's axis goes in its row.

    Made of slices of an identity: a tensor of Python numbers could not be made while a CUDA graph is captured.
    """
    nv = like.shape[1]
    unit = torch.eye(nv + 1, nv, dtype=like.dtype, device=like.device)  # its last row is zero
    at = [d + k if k < n else nv for k in range(3) for d, n in zip(limit_dof, limit_size, strict=True)]
    rows = torch.cat([unit[:0], *(unit[i : i + 1] for i in at)])
    return rows.reshape(3, len(limit_dof), nv, 1)
