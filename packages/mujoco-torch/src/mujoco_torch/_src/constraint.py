"""Rows of the constraint problem: joint limits, then contacts (``mj_makeConstraint``)."""

from typing import NamedTuple

import torch
from torch import Tensor

from mujoco_torch._src.kinematics import joint_quats
from mujoco_torch._src.spatial import MINVAL, cross, dot, normalize, quat_to_rotation_vector
from mujoco_torch._src.stage import public
from mujoco_torch._src.types import InsideData, InsideModel


class Rows(NamedTuple):
    """Constraint rows ``[nrow, ...]``; a row is inactive in a world where ``D`` is zero."""

    J: Tensor  # [nrow, nv, B]
    pos: Tensor  # [nrow, B]
    D: Tensor  # [nrow, B]
    vel: Tensor  # [nrow, B]
    aref: Tensor  # [nrow, B]


@public(
    reads=("qpos", "qvel", "cdof", "cvel", "subtree_com", "contact_dist", "contact_pos", "contact_frame"),
    writes=("nefc", "efc_J", "efc_pos", "efc_D", "efc_vel", "efc_aref"),
)
def make_constraint(m: InsideModel, d: InsideData) -> InsideData:
    """Jacobian, position, velocity, mass and reference of every constraint row, in C's order (``mj_makeConstraint``).

    It includes ``mj_referenceConstraint``, so velocities must be up to date.
    Source: MuJoCo documentation, "Computation", sections "Constraint model" and "Constraint model: parameters".

    Departures from C:
      1. Rows have static slots in C's order; an inactive slot has ``efc_D = 0``.

    Raises:
      StateError: the contacts or velocities of ``d`` do not fit the model.
    """
    parts = [rows for rows in (_limit_rows(m, d), *_contact_rows(m, d)) if rows is not None]
    if not parts:
        worlds = d.qpos.shape[-1]
        empty = d.qpos.new_zeros((0, worlds))
        rows = Rows(d.qpos.new_zeros((0, m.nv, worlds)), *(empty.clone() for _ in range(4)))
    else:
        rows = Rows(*(torch.cat(field) if len(field) > 1 else field[0] for field in zip(*parts, strict=True)))
    nefc = (rows.D > 0).sum(0, dtype=torch.int32)
    return d.replace(
        nefc=nefc, efc_J=rows.J, efc_pos=rows.pos, efc_D=rows.D, efc_vel=rows.vel, efc_aref=rows.aref
    )


def _limit_rows(m: InsideModel, d: InsideData) -> Rows | None:
    """Limits of hinges, slides (two sides each) and balls (``mj_instantiateLimit``)."""
    if not m.nl:
        return None
    dist = m.limit_qpos @ d.qpos + m.limit_offset
    jac = m.limit_J.expand(-1, -1, d.qpos.shape[-1])
    if m.ball_limit:
        axis, angle = normalize(quat_to_rotation_vector(joint_quats(m, d.qpos)))
        dist = dist - m.limit_ball @ angle
        jac = jac - (m.limit_balldof * (m.limit_ball @ axis)[:, :, None]).sum(0)
    vel = (jac * d.qvel).sum(1)
    active = dist < m.limit_margin
    mass, reference = _impedance(m, "limit", torch.where(active, dist, m.limit_margin), active)
    return Rows(jac, dist, mass, vel, reference - m.limit_damping * vel)


def _contact_rows(m: InsideModel, d: InsideData) -> list[Rows]:
    """Contacts, by runs of equal condim: a frictionless row, or the edges of a pyramid (``mj_instantiateContact``)."""
    if not m.nconmax:
        return []
    active = d.contact_dist < m.contact_threshold
    dist = torch.where(active, d.contact_dist, m.contact_margin)
    mass, reference = _impedance(m, "contact", dist, active)
    rows = []
    for dim, start, end in m.dim_runs:
        at = slice(start, end)
        jac, vel = _edges(m, d, dim, at)
        n = jac.shape[1]

        def spread(x: Tensor, n: int = n, at: slice = at) -> Tensor:
            return x[at][:, None].expand(-1, n, -1).flatten(0, 1)

        vel = vel.flatten(0, 1)
        damping = m.contact_damping[at].repeat_interleave(n, 0)
        rows.append(Rows(jac.flatten(0, 1), spread(dist), spread(mass), vel, spread(reference) - damping * vel))
    return rows


def _impedance(m: InsideModel, name: str, pos: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """Constraint mass D (0 where inactive) and the position part of the reference, ``-k imp (pos - margin)``.

    Source: MuJoCo documentation, "Computation", "Constraint model: parameters"; ``mj_makeImpedance``.
    """

    def get(what: str) -> Tensor:
        return getattr(m, f"{name}_{what}")

    violation = pos - get("margin")
    x = (violation.abs() * get("invwidth")).clamp(max=1.0)
    rise = get("rise") * x ** get("power")
    fall = 1.0 - get("fall") * (1.0 - x) ** get("power")
    y = torch.where(get("power") == 1.0, x, torch.where(x <= get("mid"), rise, fall))
    imp = get("imp0") + y * get("imprange")
    resistance = ((1.0 - imp) / imp * get("invweight")).clamp(min=MINVAL)
    return torch.where(active, 1.0 / resistance, 0.0), -get("stiffness") * imp * violation


def _edges(m: InsideModel, d: InsideData, dim: int, at: slice) -> tuple[Tensor, Tensor]:
    """Jacobian ``[ncon, nedge, nv, B]`` and velocity ``[ncon, nedge, B]`` of the pyramid edges of some contacts."""
    point, frame = d.contact_pos[:, at], d.contact_frame[:, at]
    moved = m.contact_dof[at]
    offset = point[:, :, None] - (m.dof_root @ d.subtree_com)[:, None]  # [3, ncon, nv, B]
    angular, linear = d.cdof[:3, None], d.cdof[3:, None]
    motion = linear + cross(angular.expand_as(offset), offset)
    spin_vel, point_vel = _relative_velocity(m, d, point, at)

    def direction(k: int) -> tuple[Tensor, Tensor]:
        """Jacobian and velocity along axis k of the contact: normal, two tangents, then turns about them."""
        axis = frame[3 * (k % 3) : 3 * (k % 3) + 3]
        if k < 3:
            return moved * dot(axis[:, :, None], motion), dot(axis, point_vel)
        return moved * dot(axis[:, :, None], angular.expand_as(motion)), dot(axis, spin_vel)

    jac, vel = direction(0)
    if dim == 1:
        return jac[:, None], vel[:, None]
    jacs, vels = [], []
    for k in range(1, dim):
        mu = m.contact_friction[k - 1, at]
        edge_jac, edge_vel = direction(k)
        edge_jac, edge_vel = mu[:, None] * edge_jac, mu * edge_vel
        jacs += [jac + edge_jac, jac - edge_jac]
        vels += [vel + edge_vel, vel - edge_vel]
    return torch.stack(jacs, 1), torch.stack(vels, 1)


def _relative_velocity(m: InsideModel, d: InsideData, point: Tensor, at: slice) -> tuple[Tensor, Tensor]:
    """Angular and linear velocity ``[3, ncon, B]`` of the second body of a contact relative to the first."""
    com = m.body_root @ d.subtree_com

    def at_point(select: Tensor) -> tuple[Tensor, Tensor]:
        velocity = select @ d.cvel
        return velocity[:3], velocity[3:] + cross(velocity[:3], point - select @ com)

    spin1, linear1 = at_point(m.contact_body1[at])
    spin2, linear2 = at_point(m.contact_body2[at])
    return spin2 - spin1, linear2 - linear1
