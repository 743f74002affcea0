"""Rows of the constraint problem: joint limits, then contacts (``mj_makeConstraint``)."""

from typing import NamedTuple

import torch
from torch import Tensor

from mujoco_torch._src import solver
from mujoco_torch._src.components import Components
from mujoco_torch._src.kinematics import joint_quats
from mujoco_torch._src.spatial import MINVAL, cross, dot, norm, normalize, quat_to_rotation_vector
from mujoco_torch._src.stage import public
from mujoco_torch._src.types import InsideData, InsideModel


class Constraints(NamedTuple):
    """Values ``[n, B]`` of given rows or of contacts; all rows of a contact share those of the contact."""

    pos: Tensor
    D: Tensor
    """constraint mass, 0 where the constraint is not active"""
    reference: Tensor
    """position part of the reference acceleration"""


@public(
    reads=("qpos", "qvel", "cvel", "subtree_com", "contact_dist", "contact_pos", "contact_frame"),
    writes=("nefc", "efc_pos", "efc_D", "efc_vel", "efc_aref"),
)
def make_constraint(m: InsideModel, d: InsideData) -> InsideData:
    """Position, velocity, mass and reference of every constraint row, in C's order (``mj_makeConstraint``).

    It includes ``mj_referenceConstraint``, so velocities must be up to date.
    Source: MuJoCo documentation, "Computation", sections "Constraint model" and "Constraint model: parameters".

    Departures from C:
      1. Rows have static slots in C's order; an inactive slot has ``efc_D = 0``.
      2. ``efc_J`` is not made: ``solve`` makes the active rows alone. ``efc_jacobian(m, d)`` makes it on request.

    Raises:
      StateError: the contacts or velocities of ``d`` do not fit the model.
    """
    given, contact = constraints = make_constraints(m, d)
    spread = m.system.row_contact
    pos = torch.cat((given.pos, spread @ contact.pos))
    D = solver.row_weight(m.system, given.D, contact.D, m.row_scale)
    reference = torch.cat((given.reference, spread @ contact.reference))
    vel = row_motion(m, d, d.cvel, d.qvel)
    return d.replace(
        nefc=(D > 0).sum(0, dtype=torch.int32),
        efc_pos=pos,
        efc_D=D,
        efc_vel=vel,
        efc_aref=reference - m.row_damping * vel,
        constraints=constraints,
    )


def make_constraints(m: InsideModel, d: InsideData) -> tuple[Constraints, Constraints]:
    """Of every given row, and of every contact (``mj_instantiateLimit``, ``mj_instantiateContact``)."""
    given = contact = Constraints(*(d.qpos.new_zeros((0, d.qpos.shape[-1])) for _ in Constraints._fields))
    if m.nl:
        dist = m.limit_qpos @ d.qpos + m.limit_offset
        if m.ball_limit:
            dist = dist - m.limit_ball @ norm(quat_to_rotation_vector(joint_quats(m, d.qpos)))
        given = _constraints(m, "limit", dist, m.limit_margin)
    if m.nconmax:
        contact = _constraints(m, "contact", d.contact_dist, m.contact_threshold)
    return given, contact


def _constraints(m: InsideModel, name: str, dist: Tensor, threshold: Tensor) -> Constraints:
    """Constraint mass D (0 where inactive) and the position part of the reference, ``-k imp (pos - margin)``.

    Source: MuJoCo documentation, "Computation", "Constraint model: parameters"; ``mj_makeImpedance``.
    """

    def get(what: str):
        return getattr(m, f"{name}_{what}")

    active = dist < threshold
    pos = torch.where(active, dist, get("margin"))
    violation = pos - get("margin")
    x = (violation.abs() * get("invwidth")).clamp(max=1.0)
    if get("power1"):
        y = x
    else:
        power = 2 if get("power2") else get("power")
        rise = get("rise") * x**power
        fall = 1.0 - get("fall") * (1.0 - x) ** power
        y = torch.where(get("power") == 1.0, x, torch.where(x <= get("mid"), rise, fall))
    imp = get("imp0") + y * get("imprange")
    resistance = ((1.0 - imp) / imp * get("invweight")).clamp(min=MINVAL)
    return Constraints(pos, torch.where(active, 1.0 / resistance, 0.0), -get("stiffness") * imp * violation)


def given_jacobian(m: InsideModel, d: InsideData) -> Tensor:
    """Values ``[nJ, 1 or B]`` of the given rows: the side of a scalar joint; the axis about which a ball is turned."""
    if not m.ball_limit:
        return m.limit_jac
    axis = m.limit_ball @ normalize(quat_to_rotation_vector(joint_quats(m, d.qpos)))[0]
    return m.limit_jac - m.limit_value @ axis.flatten(0, 1)


def row_motion(m: InsideModel, d: InsideData, motion: Tensor, joint: Tensor) -> Tensor:
    """``J x`` ``[njmax, B]`` of all rows, for joint-space motion x ``[nv, B]`` that moves the bodies by ``motion``.

    A contact row moves as the relative motion of its two bodies at the contact, along its axes.
    """
    parts = []
    if m.system.ngiven:
        parts.append(m.system.given_sum @ (given_jacobian(m, d) * (m.system.given_col @ joint)))
    if m.nconmax:
        (turn1, move1), (turn2, move2) = (_at_contacts(m, d, motion, side) for side in ("1", "2"))
        turn, move = turn2 - turn1, move2 - move1
        along = [Components(d.contact_frame[3 * k : 3 * k + 3]) for k in range(3)]
        axes = [*(dot(axis, move) for axis in along), *(dot(axis, turn) for axis in along)]
        rows = m.contact_row @ torch.stack(axes[: m.system.axes])
        parts.append((m.row_edge * rows).sum(0))
    if not parts:
        return joint.new_zeros((0, joint.shape[-1]))
    return torch.cat(parts)


def _at_contacts(m: InsideModel, d: InsideData, motion: Tensor, side: str) -> tuple[Components, Components]:
    """Rotation and translation at the contact points of the first or second bodies."""
    body, root = getattr(m, f"contact_body{side}"), getattr(m, f"contact_root{side}")
    moving = body @ motion
    turn, move = Components(moving[:3]), Components(moving[3:])
    arm = Components(d.contact_pos - root @ d.subtree_com)
    return turn, move + cross(turn, arm)


def row_jacobian(m: InsideModel, d: InsideData) -> Tensor:
    """Dense Jacobian ``[njmax, nv, B]`` of all rows (``efc_J``)."""
    return solver.jacobian(
        m.system, d.cdof, d.subtree_com, d.contact_pos, d.contact_frame, m.row_edge, given_jacobian(m, d)
    )
