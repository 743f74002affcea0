"""Helpers on a state: Jacobians, applied forces, products with the inertia (``engine_support``)."""

import torch
from torch import Tensor

from mujoco_torch._src import solver
from mujoco_torch._src.components import join
from mujoco_torch._src.constraint import ROW_INPUTS, row_jacobian
from mujoco_torch._src.spatial import cross
from mujoco_torch._src.stage import inside
from mujoco_torch._src.types import Data, InsideData, InsideModel, Model


def xfrc_accumulate_inside(m: InsideModel, d: InsideData) -> Tensor:
    """Generalized force ``[nv, B]`` of ``xfrc_applied``: wrenches moved to the tree's centre of mass, then summed."""
    force, torque = d.xfrc_applied[:3], d.xfrc_applied[3:]
    offset = d.xipos - m.once("body_root", d.subtree_com)
    wrench = join(torque + cross(offset, force), force)
    # A body's wrench acts on every dof that moves it.
    return (d.cdof * (m.body_dof.T @ wrench)).sum(0)


def xfrc_accumulate(m: Model, d: Data) -> Tensor:
    """Generalized force of ``d.xfrc_applied`` [N, Nm], ``(nworld, nv)`` (``mj_xfrcAccumulate``).

    Raises:
      StateError: the state does not fit the model.
    """
    qfrc = xfrc_accumulate_inside(*inside(m, d, ("xfrc_applied", "xipos", "subtree_com", "cdof"))).movedim(
        -1, 0
    )
    return qfrc if d.batch_size else qfrc[0]


def jac(m: Model, d: Data, point: Tensor, body_id: int) -> tuple[Tensor, Tensor]:
    """Jacobians of a point fixed to a body, ``(nworld, nv, 3)`` each: translation [m], rotation [rad] (``mj_jac``).

    Args:
      point: world position [m], ``(3,)`` or ``(nworld, 3)``.
      body_id: the body that carries the point.

    Departures from C:
      1. Transposed, ``(nv, 3)`` as in MJX; C has ``(3, nv)``.

    Raises:
      IndexError: there is no such body.
    """
    if not 0 <= body_id < m.nbody:
        raise IndexError(f"body_id {body_id} is not in 0..{m.nbody - 1}; the model has {m.nbody} bodies")
    point = point.expand(*d.batch_size, 3)[..., None, :]
    jacp, jacr = _jacobians(m, d, point, torch.tensor([body_id], device=m.device))
    return jacp[..., 0, :, :], jacr[..., 0, :, :]


def _jacobians(m: Model, d: Data, points: Tensor, bodies: Tensor) -> tuple[Tensor, Tensor]:
    """Jacobians ``(nworld, n, nv, 3)`` of points ``(nworld, n, 3)`` fixed to bodies ``(n,)``."""
    moved = m.body_dof.dense(d.cdof)[bodies][..., None]
    com = torch.einsum("vn,...nk->...vk", m.dof_root.dense(d.cdof), d.subtree_com)
    offset = points[..., :, None, :] - com[..., None, :, :]
    rotation = d.cdof[..., None, :, :3].expand_as(offset)
    return moved * (d.cdof[..., None, :, 3:] + torch.linalg.cross(rotation, offset)), moved * rotation


def apply_ft(m: Model, d: Data, force: Tensor, torque: Tensor, point: Tensor, body_id: int) -> Tensor:
    """Generalized force of a force [N] and torque [Nm] at a point of a body, ``(nworld, nv)`` (``mj_applyFT``).

    Args:
      force, torque, point: world frame, ``(3,)`` or ``(nworld, 3)``.
      body_id: the body they act on.

    Raises:
      IndexError: there is no such body.
    """
    jacp, jacr = jac(m, d, point, body_id)
    return (jacp * force[..., None, :]).sum(-1) + (jacr * torque[..., None, :]).sum(-1)


def efc_jacobian(m: Model, d: Data) -> Tensor:
    """Constraint Jacobian ``efc_J`` of all row slots, dense, ``(nworld, njmax, nv)``.

    The step never makes it: the solve builds the active rows alone, from ``cdof`` and the contact frames. Rows of
    inactive slots (``d.efc_D == 0``) have no meaning.

    Raises:
      StateError: the state does not fit the model.
    """
    J = row_jacobian(*inside(m, d, ROW_INPUTS)).movedim(-1, 0)
    return J if d.batch_size else J[0]


def full_m(m: Model, d: Data) -> Tensor:
    """Dense inertia matrix ``(nworld, nv, nv)`` (``mj_fullM``).

    Raises:
      StateError: ``d.M`` does not fit the model.
    """
    m_inside, d_inside = inside(m, d, ("M",))
    dense = solver.full_m(d_inside.M, m_inside.system).movedim(-1, 0)
    return dense if d.batch_size else dense[0]


def mul_m(m: Model, d: Data, vec: Tensor) -> Tensor:
    """Product of the inertia matrix with vectors ``(nworld, nv)`` (``mj_mulM``)."""
    return (full_m(m, d) @ vec[..., None])[..., 0]
