"""Passive forces: springs, dampers, gravity compensation, the medium, adhesion (``mj_passive``); springs that yield."""

import torch
from torch import Tensor

from mujoco_torch._src.components import Components, where
from mujoco_torch._src.fluid import dof_force, fluid
from mujoco_torch._src.kinematics import joint_quats
from mujoco_torch._src.layout import names
from mujoco_torch._src.spatial import (
    Stacked,
    norm,
    quat_mul,
    quat_to_rotation_vector,
    rotation_vector_to_quat,
    safe_norm,
)
from mujoco_torch._src.stage import public
from mujoco_torch._src.tendon import tendon_damper, tendon_spring
from mujoco_torch._src.types import InsideData, InsideModel


@public(
    reads=names(
        "qpos qvel plastic xipos ximat geom_xpos geom_xmat subtree_com cdof cvel ten_J ten_length ten_velocity "
        "contact_dist contact_pos contact_frame"
    ),
    writes=names("qfrc_spring qfrc_damper qfrc_gravcomp qfrc_fluid qfrc_adhesion qfrc_passive"),
)
def passive(m: InsideModel, d: InsideData) -> InsideData:
    """Forces of springs, dampers, gravity compensation, the medium and adhesion, and their sum (``mj_passive``).

    The disable flags of springs and of dampers are independent; if both are set, there are no passive forces at all.
    Gravity compensation of a joint with ``actgravcomp`` is in ``qfrc_gravcomp``, but not in the sum.

    Raises:
      StateError: the state does not fit the model.
    """
    qfrc_damper = -_damper_coefficient(m, d.qvel) * d.qvel
    qfrc_spring = _spring(m, d) if m.has_spring else torch.zeros_like(d.qvel)
    if m.tendon_springs:
        qfrc_spring = qfrc_spring + tendon_spring(m, d)
    if m.tendon_dampers:
        qfrc_damper = qfrc_damper + tendon_damper(m, d)
    qfrc_gravcomp = _gravcomp(m, d) if m.has_gravcomp else torch.zeros_like(d.qvel)
    in_medium = m.fluid_boxes or m.fluid_ellipsoids
    qfrc_fluid = fluid(m, d) if in_medium else torch.zeros_like(d.qvel)
    qfrc_passive = qfrc_spring + qfrc_damper
    if m.has_gravcomp:
        qfrc_passive = qfrc_passive + m.gravcomp_passive * qfrc_gravcomp
    if in_medium:
        qfrc_passive = qfrc_passive + qfrc_fluid
    qfrc_adhesion = _adhesion(m, d) if m.nadhesive else torch.zeros_like(d.qvel)
    if m.nadhesive:
        qfrc_passive = qfrc_passive + qfrc_adhesion
    return d.replace(
        qfrc_spring=qfrc_spring,
        qfrc_damper=qfrc_damper,
        qfrc_gravcomp=qfrc_gravcomp,
        qfrc_fluid=qfrc_fluid,
        qfrc_adhesion=qfrc_adhesion,
        qfrc_passive=qfrc_passive,
    )


def _damper_coefficient(m: InsideModel, qvel: Tensor) -> Tensor:
    """Damping force over velocity, ``[nv, B]``: ``a + b |v| + c v^2``."""
    if not m.has_dampingpoly:
        return m.dof_damping
    speed = qvel.abs()
    return m.dof_damping + speed * (m.dof_dampingpoly[0] + speed * m.dof_dampingpoly[1])


def damping_rate(m: InsideModel, qvel: Tensor) -> Tensor:
    """Derivative of minus the dampers' forces by the velocity, ``[nv, B]``: ``a + 2 b |v| + 3 c v^2``."""
    if not m.has_dampingpoly:
        return m.dof_damping
    speed = qvel.abs()
    return m.dof_damping + speed * (2.0 * m.dof_dampingpoly[0] + 3.0 * speed * m.dof_dampingpoly[1])


def spring_stretch(m: InsideModel, d: InsideData) -> Tensor:
    """Displacement of every dof from the reference of its spring [m, rad], ``[nv, B]``; rotations as vectors."""
    reference = m.qpos_spring
    if m.plastic_scalars:
        reference = reference + m.plastic_qpos.T @ (m.plastic_scalar @ d.plastic)
    stretch = m.qpos_dof.T @ (d.qpos - reference)
    if m.quat_spring:
        turned = _turned(_spring_quats(m, d), joint_quats(m, d.qpos))
        stretch = stretch + m.quat_dof.T @ turned.stack().flatten(0, 1)
    return stretch


def _spring_quats(m: InsideModel, d: InsideData) -> Stacked:
    """Reference orientations of the ball and free joints, ``[4, nquat, B]``."""
    if not m.plastic_balls:
        return m.spring_quat
    state = (m.plastic_into_quat @ d.plastic).unflatten(0, (4, m.nquat))
    return m.spring_quat + _scaled_to_unit(state)


def _scaled_to_unit(quat: Tensor) -> Tensor:
    """Unit quaternions; unlike ``normalize``, zero stays zero: in C such a spring is at rest everywhere."""
    length, nonzero = safe_norm(quat)
    return quat / torch.where(nonzero, length, 1.0)


def _turned(reference: Stacked, quat: Stacked) -> Components:
    """Rotation vector from one orientation to another, in the frame of the first (``mju_subQuat``)."""
    w, x, y, z = reference
    return quat_to_rotation_vector(quat_mul(Components((w, -x, -y, -z)), quat))


def _spring(m: InsideModel, d: InsideData) -> Tensor:
    """Forces ``-x (a + b x + c x^2)``; of a translation or rotation in space, ``x`` in the bracket is its length."""
    stretch = spring_stretch(m, d)
    if not m.has_stiffnesspoly:
        return -m.dof_stiffness * stretch
    square = m.spring_dofs @ (stretch * stretch)
    moved = square > 0
    length = torch.where(moved, torch.where(moved, square, 1.0).sqrt(), 0.0)
    x = torch.where(m.dof_scalar > 0, stretch, length)
    return -stretch * (m.dof_stiffness + x * (m.dof_stiffnesspoly[0] + x * m.dof_stiffnesspoly[1]))


def _gravcomp(m: InsideModel, d: InsideData) -> Tensor:
    """Forces against gravity at the centres of mass of the bodies that have them."""
    offset = m.gravcomp_body @ d.xipos - m.gravcomp_root @ d.subtree_com
    return dof_force(d, m.gravcomp_dof, offset, m.gravcomp_force)


def _adhesion(m: InsideModel, d: InsideData) -> Tensor:
    """Forces that pull the geoms of adhesive contacts together along the normal, also in the gap.

    Source: MuJoCo documentation, "Computation", "Constraint model: parameters", "Adhesion".
    """
    contact = torch.where(
        d.contact_dist < torch.inf, torch.cat((d.contact_pos, d.contact_frame[:3])), 0.0
    )  # no force where none is
    at = m.adhesive_slot @ contact
    offset = at[:3] - m.adhesive_root @ d.subtree_com
    return dof_force(d, m.adhesive_dof, offset, m.adhesive_force * at[3:])


def yielded(m: InsideModel, qpos: Tensor, plastic: Tensor) -> Tensor:
    """References of springs after they have yielded to positions, ``[nplastic, B]``.

    A spring that is stretched beyond ``springyield`` gives way by the excess.
    Source: MuJoCo documentation, "XML Reference", attribute ``springyield`` of a joint.
    """
    if m.plastic_scalars:
        stretch = m.plastic_qpos @ qpos - m.plastic_scalar @ plastic
        excess = stretch - torch.clamp(stretch, -m.scalar_springyield, m.scalar_springyield)
        plastic = plastic + m.plastic_scalar.T @ excess
    if m.plastic_balls:
        plastic = plastic + m.plastic_ball.T @ _yielded_turns(m, qpos, plastic)
    return plastic


def _yielded_turns(m: InsideModel, qpos: Tensor, plastic: Tensor) -> Tensor:
    """Changes of the reference quaternions of ball joints, ``[4 * plastic_balls, B]``."""
    reference = (m.plastic_ball @ plastic).unflatten(0, (4, m.plastic_balls))
    unit = _scaled_to_unit(reference)
    turn = _turned(unit, m.plastic_quat @ joint_quats(m, qpos))
    angle = norm(turn)
    beyond = angle > m.ball_springyield
    excess = 1.0 - m.ball_springyield / torch.where(beyond, angle, 1.0)
    # from the reference, not from the joint: the sign of the quaternion stays
    new = quat_mul(unit, rotation_vector_to_quat(excess * turn))
    return (where(beyond, new, reference) - reference).stack().flatten(0, 1)
