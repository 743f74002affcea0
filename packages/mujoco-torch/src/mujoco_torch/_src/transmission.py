"""Actuator lengths and moments (``mj_transmission``), for every kind of transmission.

An actuator has one force output, or three where it acts on a relative orientation; lengths and moments have one row
per output.

A moment on sites, cranks or contacts is the work of *pushes*. A push is what a unit of the output's force exerts on a
body, a wrench about the centre of mass of the body's tree; its product with ``cdof`` is the moment on the dofs that
move the body.
"""

import torch
from torch import Tensor

from mujoco_torch._src.components import Components, join, stacked
from mujoco_torch._src.kinematics import joint_quats
from mujoco_torch._src.layout import names
from mujoco_torch._src.spatial import Stacked, cross, dot, quat_mul, quat_to_rotation_vector, rotate
from mujoco_torch._src.stage import public
from mujoco_torch._src.types import InsideData, InsideModel


@public(
    reads=names(
        "qpos xquat site_xpos site_xmat subtree_com cdof ten_J ten_length contact_dist contact_pos contact_frame"
    ),
    writes=("actuator_length", "actuator_moment"),
)
def transmission(m: InsideModel, d: InsideData) -> InsideData:
    """Length and moment of every force output: joint, tendon, site, slider-crank, body, SO3 (``mj_transmission``).

    Length is that of the target times gear: [m], [rad], or both mixed as the gear mixes them; 0 for a free joint, a
    site without reference and a body. Source: MuJoCo documentation, "Computation", section "Actuation model";
    "XML Reference", actuator/general.

    Departures from C:
      1. ``actuator_moment`` is dense, C stores its rows sparsely.
      2. Dofs that move both sites of a slider-crank alike get exactly 0, in C what rounding leaves.

    Raises:
      StateError: the position, poses or contacts of ``d`` do not fit the model.
    """
    length = m.actuator_qpos @ d.qpos
    moment = m.moment0.expand(-1, d.qpos.shape[-1])
    if m.ball_actuator:
        quat = m.actuator_quat @ joint_quats(m, d.qpos)  # zero for an actuator of a slide or hinge
        if m.parent_gear:
            moment = moment + m.moment_place @ _parent_gear(m, quat).stack().flatten(0, 1)
        length = length + _ball_length(m, quat, moment)
    if m.tendon_actuator:
        length = length + m.actuator_tendon @ d.ten_length
        moment = moment + m.moment_tendon @ d.ten_J.flatten(0, 1)
    if m.nsite_length:
        length = length + m.actuator_site @ _site_length(m, d)
    if m.ncrank:
        length = length + m.actuator_crank @ _crank(m, d)[0]
    if m.npush:
        moment = moment + _push_moment(m, d)
    dense = (m.moment_dense @ moment).unflatten(0, (m.nout, m.nv))
    return d.replace(actuator_length=length, actuator_moment=dense, moment=moment)


def moments(m: InsideModel, d: InsideData) -> Tensor:
    """The elements ``[nJ, B]`` of the moments that are not zero by the model's structure."""
    carried = d.fields.get("moment")
    return m.moment_dense.T @ d.actuator_moment.flatten(0, 1) if carried is None else carried


def wrap_setpoint(period: Tensor, setpoint: Tensor, length: Tensor) -> Tensor:
    """Set points of servos of an angle on the circle moved by full turns to the nearest of ``length``; others as given.

    Args:
      period: length of a full turn [rad times gear], ``[n, 1]``; 0 for what is no set point of an angle.
      setpoint: control or activation [rad times gear], ``[n, B]``.
      length: what to be near to, ``[n, B]``.

    Half a turn away, it is moved towards ``length`` (C rounds halves away from zero).
    Source: MuJoCo documentation, changelog of 3.11, "Actuation"; "XML Reference", actuator/general/joint.
    """
    wraps = period > 0
    turns = (setpoint - length) / torch.where(wraps, period, 1.0)
    whole = turns.sign() * (turns.abs() + 0.5).floor()
    return torch.where(wraps, setpoint - period * whole, setpoint)


def _parent_gear(m: InsideModel, quat: Tensor) -> Components:
    """Gears given in the parent frame ``[3, nout, B]``, turned into the frame of the joint."""
    return rotate(join(quat[:1], -quat[1:]), m.actuator_parentgear)


def _ball_length(m: InsideModel, quat: Tensor, moment: Tensor) -> Tensor:
    """Length of actuators on ball joints: gear times rotation vector."""
    gear = (m.moment_gear @ moment).unflatten(0, (3, m.nout))
    turn = quat_to_rotation_vector(quat)
    return m.actuator_ball * dot(gear, turn)


def _site_length(m: InsideModel, d: InsideData) -> Tensor:
    """Lengths ``[nsite_length, B]`` of sites in reference sites: gear times position and rotation vector there."""
    n = m.nsite_length
    site, ref = stacked(quat_mul(m.site_length_body @ d.xquat, m.site_length_quat)).split(n, 1)
    inverse = join(ref[:1], -ref[1:])
    length = torch.zeros_like(site[0])
    if m.site_translation:
        at, origin = (m.site_length_at @ d.site_xpos).split(n, 1)
        length = length + dot(m.site_length_gear[:3], rotate(inverse, at - origin))
    if m.site_rotation:
        turn = quat_to_rotation_vector(quat_mul(inverse, site))
        length = length + dot(m.site_length_gear[3:], turn)
    return length


def _push_moment(m: InsideModel, d: InsideData) -> Tensor:
    """Elements ``[nJ, B]`` of the moments that come from pushes, zero elsewhere."""
    pushes = []
    if m.nsite_push:
        pushes.append(_site_pushes(m, d))
    if m.ncrank:
        pushes.append(_crank(m, d)[1])
    if m.nadhesion_push:
        pushes.append(_adhesion_pushes(m, d))
    wrench = torch.cat(stacked(pushes), 1) if len(pushes) > 1 else pushes[0]
    return m.push_place @ dot(m.push_dof @ d.cdof, m.push_sum @ wrench)


def _wrench(offset: Stacked, force: Stacked, torque: Stacked | None = None) -> Components:
    """Wrench ``[6, n, B]`` about a point of a force at an offset from it, and a torque."""
    turn = cross(offset, force)
    return join(turn if torque is None else turn + torque, force)


def _turned(mat: Stacked, v: Stacked) -> Components:
    """Vectors given along the axes of a frame, in the world."""
    return Components(dot(mat[3 * k : 3 * k + 3], v) for k in range(3))


def _site_pushes(m: InsideModel, d: InsideData) -> Components:
    """Wrenches ``[6, nsite_push, B]`` of the gears along the axes of their frames, at their sites."""
    mat = m.site_push_frame @ d.site_xmat
    offset = m.site_push_at @ d.site_xpos - m.site_push_root @ d.subtree_com
    gear = m.site_push_gear
    return _wrench(offset, _turned(mat, gear[:3]), _turned(mat, gear[3:]))


def _crank(m: InsideModel, d: InsideData) -> tuple[Tensor, Components]:
    """Lengths ``[ncrank, B]`` of slider-cranks, and wrenches ``[6, 2 ncrank, B]`` on the cranks, then the sliders.

    The slider's pin is on the axis a through the slider site, at the length l where the rod r reaches the crank's pin
    at v: ``|v - l a| = r``, so ``l = a.v - sqrt((a.v)^2 + r^2 - v.v)``. Out of the rod's reach there is no root, l is
    the crank's own place along the axis.
    """
    points = m.crank_site @ d.site_xpos
    pin, slider = points.split(m.ncrank, 1)
    axis, v = m.crank_slider @ d.site_xmat[2::3], pin - slider
    along = dot(axis, v)
    square = along * along + m.crank_rod * m.crank_rod - dot(v, v)
    reached = square > 0
    root = torch.where(reached, square, 1.0).sqrt()
    inverse = torch.where(reached, 1.0 / root, 0.0)
    slope = 1.0 - along * inverse
    pull = m.crank_gear * (slope * axis + inverse * v)  # derivative of the length by v
    twist = cross(axis, m.crank_gear * slope * v)  # and by a turn of the axis
    length = m.crank_gear * (along - torch.where(reached, root, 0.0))
    force, torque = torch.cat((pull, -pull), 1), torch.cat((torch.zeros_like(pull), stacked(twist)), 1)
    return length, _wrench(points - m.crank_root @ d.subtree_com, force, torque)


def _adhesion_pushes(m: InsideModel, d: InsideData) -> Components:
    """Wrenches ``[6, nadhesion_push, B]`` that pull bodies together at the contacts, in equal shares.

    All contacts of the body count that C lists, also those in the gap, which have no force of their own.
    """
    counts = (d.contact_dist < torch.inf) & (d.contact_dist >= m.adhesion_nearest)
    contact = torch.where(
        counts, torch.cat((d.contact_pos, d.contact_frame[:3])), 0.0
    )  # no force where none is
    number = m.adhesion_slot @ counts.to(contact.dtype)
    share = m.adhesion_push_sign * (m.adhesion_push_actuator @ (1.0 / number.clamp(min=1.0)))
    at = m.adhesion_push_slot @ contact
    return _wrench(at[:3] - m.adhesion_root @ d.subtree_com, share * at[3:])
