"""Rows of the constraint problem: equalities, friction losses, limits, contacts (``mj_makeConstraint``)."""

from typing import NamedTuple

import torch
from torch import Tensor

from mujoco_torch._src import solver
from mujoco_torch._src.components import Components
from mujoco_torch._src.enums import ConeType
from mujoco_torch._src.equality import equalities
from mujoco_torch._src.kinematics import joint_quats
from mujoco_torch._src.layout import names
from mujoco_torch._src.spatial import cross, dot, normalize, quat_to_rotation_vector
from mujoco_torch._src.stage import public
from mujoco_torch._src.types import InsideData, InsideModel

ROW_INPUTS = names(
    "qpos qvel eq_active xpos xquat geom_xpos geom_xmat subtree_com cdof ten_J ten_length cvel cdof_dot contact_dist "
    "contact_pos contact_frame"
)
"""What the rows are made of."""


class Rows(NamedTuple):
    """Values ``[n, B]`` of given rows, or of contacts, whose rows share those of the contact."""

    pos: Tensor
    D: Tensor
    """constraint mass, 0 where the constraint is not active"""
    reference: Tensor
    """reference acceleration but for damping"""


class Constraints(NamedTuple):
    """What the rows of the problem are made of."""

    given_jac: Tensor
    """values of J ``[nJ, 1 or B]`` of the given rows: equalities, friction losses, limits"""
    given: Rows
    contact: Rows
    surface: Tensor | None
    """velocity of the second surface against the first along the axes ``[axes, nconmax, B]``; None at rest"""

    def contact_reference(self, m: InsideModel) -> Tensor:
        """Reference of the contacts ``[1 or axes, nconmax, B]``, along the normal or along all axes."""
        normal = self.contact.reference.unsqueeze(0)
        if self.surface is None:
            return normal
        return torch.cat((normal, -m.contact_friction_damping * self.surface[1:]))


@public(reads=ROW_INPUTS, writes=("nefc", "efc_pos", "efc_D", "efc_vel", "efc_aref"))
def make_constraint(m: InsideModel, d: InsideData) -> InsideData:
    """Position, velocity, mass and reference of every constraint row, in C's order (``mj_makeConstraint``).

    It includes ``mj_referenceConstraint``, so velocities must be up to date.
    Source: MuJoCo documentation, "Computation", sections "Constraint model" and "Constraint model: parameters".

    Departures from C:
      1. Rows have static slots in C's order; an inactive slot has ``efc_D = 0``.
      2. ``efc_J`` is not made: ``solve`` makes the active rows alone. ``efc_jacobian(m, d)`` makes it on request.
      3. A row that is zero by chance keeps its slot; C leaves it out, which does not change the motion.

    Raises:
      StateError: the contacts or velocities of ``d`` do not fit the model.
    """
    constraints = make_constraints(m, d)
    d = d.replace(constraints=constraints)
    pos, D, reference = (
        _each_row(m, *pair) for pair in zip(constraints.given, _contact_rows(m, constraints), strict=True)
    )
    vel = row_motion(m, d, d.cvel, d.qvel)
    aref = reference - m.row_damping * vel
    if constraints.surface is not None:
        at_rest = vel.new_zeros((m.system.ngiven, vel.shape[-1]))
        vel = vel + _each_row(m, at_rest, _along_edges(m, m.contact_row @ constraints.surface))
    return d.replace(
        nefc=(D > 0).sum(0, dtype=torch.int32),
        efc_pos=pos,
        efc_D=D,
        efc_vel=vel,
        efc_aref=aref,
    )


def _contact_rows(m: InsideModel, constraints: Constraints) -> Rows:
    """Values of every contact row; of an elliptic cone only the normal has a position, and each axis its own mass."""
    if not m.nconmax:
        return constraints.contact
    pos, D, _ = constraints.contact
    rows = m.contact_row @ torch.stack((pos, D, *constraints.contact_reference(m)))
    pos, D, reference = rows[0], rows[1], _along_edges(m, rows[2:])
    if m.cone == ConeType.PYRAMIDAL:
        return Rows(pos, D, reference)
    return Rows(m.row_edge[0] * pos, m.row_scale * D, reference)


def _along_edges(m: InsideModel, rows: Tensor) -> Tensor:
    """Values ``[rows, B]`` along the edge of each contact row, of values along the first axes of its contact."""
    if len(rows) == 1 and m.cone == ConeType.PYRAMIDAL:
        return rows[0]
    return (m.row_edge[: len(rows)] * rows).sum(0)


def _each_row(m: InsideModel, given: Tensor, contact: Tensor) -> Tensor:
    """Values of the given rows, then of the contact rows."""
    if not m.nconmax:
        return given
    return torch.cat((given, contact)) if m.system.ngiven else contact


def make_constraints(m: InsideModel, d: InsideData) -> Constraints:
    """Everything the rows are made of (``mj_instantiateEquality``, ``...Friction``, ``...Limit``, ``...Contact``)."""
    parts, jac = [], m.given_constant
    if m.ne:
        equality, more = _equalities(m, d)
        parts.append(equality)
        jac = jac + more
    if m.nf:
        zero = d.qpos.new_zeros((m.nf, d.qpos.shape[-1]))
        parts.append(Rows(zero, m.friction_D + zero, zero))
    if m.nl:
        dist = _limit_distance(m, d)
        if m.ball_limit:  # the angle of a ball is limited, about the axis by which it is turned
            axis, angle = normalize(quat_to_rotation_vector(joint_quats(m, d.qpos)))
            dist = dist - m.limit_ball @ angle
            jac = jac + m.given_ball @ axis.stack().flatten(0, 1)
        parts.append(_active_below(m, "limit", dist, m.limit_margin))
    if m.given_tendon:
        jac = jac + m.given_ten_J @ d.ten_J.flatten(0, 1)
    none = Rows(*(d.qpos.new_zeros((0, d.qpos.shape[-1])) for _ in Rows._fields))
    given = Rows(*(torch.cat(x) for x in zip(*parts, strict=True))) if len(parts) > 1 else (*parts, none)[0]
    contact = none
    if m.nconmax:
        bias = m.contact_bias if m.adhesive else None
        contact = _active_below(m, "contact", d.contact_dist, m.contact_threshold, bias)
    return Constraints(jac, given, contact, _surface_velocity(m, d) if m.moving_surface else None)


def _surface_velocity(m: InsideModel, d: InsideData) -> Tensor:
    """Velocity of the second surface against the first ``[axes, nconmax, B]``: both tangents, then the spin.

    A surface moves as ``v + w x r`` about the geom's origin, in the geom's frame; the normal part does not count.
    Source: MuJoCo documentation, "XML reference", "geom/surfacevel".
    """
    pose = d.joined("geom_xpos", "geom_xmat")
    relative = [0.0, 0.0]
    for sign, side in ((1.0, "2"), (-1.0, "1")):
        geom = getattr(m, f"contact_geom{side}") @ pose
        field = getattr(m, f"contact_surface{side}")
        columns = Components(geom[3:])
        v, w = (
            Components(dot(columns[3 * k : 3 * k + 3], field[at : at + 3]) for k in range(3)) for at in (0, 3)
        )
        moving = v + cross(w, d.contact_pos - geom[:3])
        relative = [relative[0] + sign * moving, relative[1] + sign * w]
    slide, spin = relative
    along = [Components(d.contact_frame[3 * k : 3 * k + 3]) for k in range(3)]
    axes = [dot(along[1], slide), dot(along[2], slide), dot(along[0], spin)]
    rest = torch.zeros_like(axes[0])
    return torch.stack([rest, *axes, rest, rest][: m.system.axes])


def _equalities(m: InsideModel, d: InsideData) -> tuple[Rows, Tensor]:
    """Rows of the equalities, and values of their Jacobian."""
    e = equalities(m, d)
    active = m.equality_active @ (d.eq_active != 0).to(d.qpos.dtype) > 0
    imp, D = _impedance(m, "equality", e.size)
    reference = -m.equality_stiffness * imp * e.pos
    if e.bias is not None:
        reference = reference - e.bias
    return Rows(e.pos, torch.where(active, D, 0.0), reference), e.jac


def _limit_distance(m: InsideModel, d: InsideData) -> Tensor:
    """How far the limits of joints and tendons are away ``[nl, B or 1]``; of a ball, if it is not turned."""
    dist = m.limit_offset
    if m.joint_limit:
        dist = m.limit_qpos @ d.qpos + dist
    if m.tendon_limit:
        dist = m.limit_length @ d.ten_length + dist
    return dist


def _active_below(
    m: InsideModel, name: str, dist: Tensor, threshold: Tensor, bias: Tensor | None = None
) -> Rows:
    """Rows of constraints that are active below a distance.

    A force ``bias`` on each row makes good for adhesion, which pulls in ``qfrc_adhesion``: together they move the cone
    of the contact's forces down its normal and leave all else as it is.
    Source: MuJoCo documentation, "Computation", "Constraint model: parameters", "Adhesion".
    """
    active = dist < threshold
    margin = getattr(m, f"{name}_margin")
    pos = torch.where(active, dist, margin)
    imp, D = _impedance(m, name, pos - margin)
    reference = -getattr(m, f"{name}_stiffness") * imp * (pos - margin)
    if bias is not None:
        reference = reference + bias / D
    return Rows(pos, torch.where(active, D, 0.0), reference)


def _impedance(m: InsideModel, name: str, violation: Tensor) -> tuple[Tensor, Tensor]:
    """Impedance and constraint mass of constraints that are violated so far.

    Source: MuJoCo documentation, "Computation", "Constraint model: parameters"; ``mj_makeImpedance``.
    """

    def get(what: str):
        return getattr(m, f"{name}_{what}")

    x = (violation.abs() * get("invwidth")).clamp(max=1.0)
    if get("power1"):
        y = x
    else:
        power = 2 if get("power2") else get("power")
        rise = get("rise") * x**power
        fall = 1.0 - get("fall") * (1.0 - x) ** power
        y = torch.where(get("power") == 1.0, x, torch.where(x <= get("mid"), rise, fall))
    imp = get("imp0") + y * get("imprange")
    resistance = ((1.0 - imp) / imp * get("invweight")).clamp(min=get("floor"))
    return imp, 1.0 / resistance


def row_motion(m: InsideModel, d: InsideData, motion: Tensor, joint: Tensor) -> Tensor:
    """``J x`` ``[njmax, B]`` of all rows, for joint-space motion x ``[nv, B]`` that moves the bodies by ``motion``.

    A contact row moves as the relative motion of its two bodies at the contact, along its axes.
    """
    parts = []
    if m.system.ngiven:
        values = d.constraints.given_jac * (m.system.given_col @ joint)
        parts.append(values if m.given_single else m.system.given_sum @ values)
    if m.nconmax:
        turn, move = _relative_motion(m, d, motion)
        along = [Components(d.contact_frame[3 * k : 3 * k + 3]) for k in range(3)]
        axes = [*(dot(axis, move) for axis in along), *(dot(axis, turn) for axis in along)]
        parts.append(_along_edges(m, m.contact_row @ torch.stack(axes[: m.system.axes])))
    if not parts:
        return joint.new_zeros((0, joint.shape[-1]))
    return torch.cat(parts)


def _relative_motion(m: InsideModel, d: InsideData, motion: Tensor) -> tuple[Components, Components]:
    """Rotation and translation at the contact points of the second bodies against the first."""
    moving, root = m.contact_bodies @ motion, m.once("contact_roots", d.subtree_com)
    sides = []
    for part in (slice(0, m.nconmax), slice(m.nconmax, None)):
        turn, move = Components(moving[:3, part]), Components(moving[3:, part])
        sides.append((turn, move + cross(turn, Components(d.contact_pos - root[:, part]))))
    (turn1, move1), (turn2, move2) = sides
    return turn2 - turn1, move2 - move1


def row_jacobian(m: InsideModel, d: InsideData) -> Tensor:
    """Dense Jacobian ``[njmax, nv, B]`` of all rows (``efc_J``)."""
    given_jac = make_constraints(m, d).given_jac
    return solver.jacobian(
        m.system, d.cdof, d.subtree_com, d.contact_pos, d.contact_frame, m.row_edge, given_jac
    )
