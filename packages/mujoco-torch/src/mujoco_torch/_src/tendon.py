"""Tendons: lengths and Jacobians, springs and dampers, armature (``mj_tendon`` and what follows from it).

A spatial tendon is a sum of straight segments and of arcs on the obstacles it wraps. Only the ends of the segments
matter to its Jacobian: a segment pulls at its ends along itself, and an element of the Jacobian is the power of these
pulls at unit velocity of the dof. (An arc slides on its geom: its ends, the contact points, count as fixed to it.)
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mujoco_torch._src.components import Components, join, stacked
from mujoco_torch._src.spatial import MINVAL, Stacked, cross, dot, normalize
from mujoco_torch._src.stage import public
from mujoco_torch._src.types import InsideData, InsideModel
from mujoco_torch._src.wrap import wrap


class _Segments(NamedTuple):
    """Straight segments, one after the other, and the arcs between them."""

    start: Tensor  # [3, nsegment, B]
    stop: Tensor  # [3, nsegment, B]
    exists: Tensor | None  # [nsegment, B]; None: all of them in all worlds
    arc: Tensor | None  # [nwrap, B]; None: there are no obstacles


@public(
    reads=("qpos", "site_xpos", "geom_xpos", "geom_xmat", "subtree_com", "cdof"),
    writes=("ten_J", "ten_length"),
)
def tendon(m: InsideModel, d: InsideData) -> InsideData:
    """Length and Jacobian of every tendon, fixed and spatial (``mj_tendon``).

    Source: MuJoCo documentation, "Modeling", section "Tendons"; "XML Reference", elements "tendon".

    Departures from C:
      1. ``ten_J`` is dense, C stores its rows sparsely.
      2. The points of wrapped paths (``wrap_xpos``, ``wrap_obj``) are not kept.

    Raises:
      StateError: ``qpos`` or the poses of ``d`` do not fit the model.
    """
    worlds = d.qpos.shape[-1]
    if not m.ntendon:
        return d.replace(ten_J=d.qpos.new_zeros((0, m.nv, worlds)), ten_length=d.qpos.new_zeros((0, worlds)))
    if not m.straight_piece + m.wrap_piece:
        return d.replace(ten_J=m.tendon_J0.expand(-1, -1, worlds).clone(), ten_length=m.tendon_qpos @ d.qpos)
    length, jacobian = _spatial(m, d)
    if m.fixed_tendon:
        length, jacobian = length + m.tendon_qpos @ d.qpos, jacobian + m.tendon_J0
    return d.replace(ten_J=jacobian, ten_length=length)


def _spatial(m: InsideModel, d: InsideData) -> tuple[Tensor, Tensor]:
    """Lengths ``[ntendon, B]`` and Jacobians ``[ntendon, nv, B]`` of spatial tendons; zero for the others."""
    segments = _segments(m, d)
    along, size = normalize(segments.stop - segments.start)
    if segments.exists is not None:
        size = torch.where(segments.exists, size, 0.0)
        along = Components(torch.where(segments.exists, x, 0.0) for x in along)
    length = m.tendon_segment @ size
    if segments.arc is not None:
        length = length + m.tendon_wrap @ segments.arc

    # What a unit pull at the end of a segment does to the tree that carries it: torque about its centre, force.
    ends = torch.cat((segments.start, segments.stop), 1)
    pull = torch.cat((stacked(along),) * 2, 1)
    wrench = join(cross(ends - m.segment_root @ d.subtree_com, pull), pull)
    elements = dot(m.tendon_dof @ d.cdof, m.tendon_end @ wrench)
    return length, (m.tendon_dense @ elements).unflatten(0, (m.ntendon, m.nv))


def _segments(m: InsideModel, d: InsideData) -> _Segments:
    start, stop = m.piece_start @ d.site_xpos, m.piece_stop @ d.site_xpos
    if not m.wrap_piece:
        return _Segments(start, stop, None, None)
    start0, stop0 = start[:, m.straight_piece :], stop[:, m.straight_piece :]
    wraps, arc, touch, leave = wrap(m, d, start0, stop0)
    always = torch.ones_like(start[0, : m.straight_piece], dtype=torch.bool)
    return _Segments(
        torch.cat((start, start0, stacked(leave)), 1),
        torch.cat((stop, stacked(touch), stop0), 1),
        torch.cat((always, ~wraps, wraps, wraps)),
        torch.where(wraps, arc, 0.0),
    )


def tendon_spring(m: InsideModel, d: InsideData) -> Tensor:
    """Joint forces ``[nv, B]`` of tendon springs, slack between their two rest lengths (part of ``mj_passive``).

    Source: MuJoCo documentation, "XML Reference", attributes stiffness and springlength of tendons.
    """
    stretch = tendon_stretch(m, d)
    return _joint_forces(d, -stretch * _polynomial(m.tendon_spring, stretch))


def tendon_stretch(m: InsideModel, d: InsideData) -> Tensor:
    """How far the tendons are beyond their rest lengths [m, rad], ``[ntendon, B]``; negative if too short."""
    lower, upper = m.tendon_lengthspring
    if m.plastic_tendons:
        yielding = (m.plastic_lengthspring @ d.plastic).unflatten(0, (2, m.ntendon))
        lower, upper = lower + yielding[0], upper + yielding[1]
    return _beyond(d.ten_length, lower, upper)


def _beyond(length: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Length beyond a range; of one that is upside down the upper end counts first, as in C."""
    return torch.where(length > upper, length - upper, torch.clamp(length - lower, max=0.0))


def yielded_tendons(m: InsideModel, length: Tensor, plastic: Tensor) -> Tensor:
    """References of springs after those of tendons have yielded to lengths ``[ntendon, B]``; ``[nplastic, B]``.

    A spring that is stretched or pressed beyond ``springyield`` gives way by the excess: both of its rest lengths
    move. The lower one stays where it is zero below a positive upper one, and the tendon is too long.
    Source: MuJoCo documentation, "XML Reference", attribute ``springyield`` of a spatial tendon.
    """
    lower, upper = (m.plastic_tendon @ plastic).unflatten(0, (2, m.plastic_tendons))
    stretch = _beyond(m.plastic_length @ length, lower, upper)
    excess = stretch - torch.clamp(stretch, -m.tendon_springyield, m.tendon_springyield)
    pinned = (lower == 0) & (upper > 0) & (stretch > 0)
    return plastic + m.plastic_tendon.T @ torch.cat((torch.where(pinned, 0.0, excess), excess))


def tendon_damper(m: InsideModel, d: InsideData) -> Tensor:
    """Joint forces ``[nv, B]`` of tendon dampers (part of ``mj_passive``)."""
    return _joint_forces(d, -d.ten_velocity * _polynomial(m.tendon_damper, d.ten_velocity.abs()))


def _polynomial(coefficients: Tensor, x: Tensor) -> Tensor:
    first, second, third = coefficients
    return first + (second + third * x) * x


def _joint_forces(d: InsideData, tension: Tensor) -> Tensor:
    """Joint forces of forces along the tendons ``[ntendon, B]``, positive where they lengthen the tendon."""
    return (d.ten_J * tension.unsqueeze(1)).sum(0)


def tendon_armature(m: InsideModel, d: InsideData) -> Tensor:
    """What the armature of tendons adds to ``M`` ``[nC, B]`` (``mj_tendonArmature``).

    As in C, products of two dofs on different branches of the tree have no place in ``M`` and are left out.
    """
    jacobian = d.ten_J.flatten(0, 1)
    return m.armature_M @ (m.armature_value * (m.armature_row @ jacobian) * (m.armature_col @ jacobian))


def tendon_bias(m: InsideModel, d: InsideData) -> Tensor:
    """Joint forces ``[nv, B]`` of armature as the Jacobian turns, ``J' armature Jdot qvel`` (``mj_tendonBias``).

    The rate of a segment's length changes by the relative acceleration of its ends along it, and by their relative
    velocity across it: ``u . a + (v . v - (u . v)^2) / l``.
    """
    velocity, acceleration = _ends_motion(m, d)
    start, stop = (m.bias_site @ d.site_xpos).unflatten(1, (2, -1)).unbind(1)
    along, size = normalize(stop - start)
    rate = dot(along, velocity)
    proper = size > MINVAL
    across = torch.where(
        proper, (dot(velocity, velocity) - rate * rate) / torch.where(proper, size, 1.0), 0.0
    )
    return _joint_forces(d, m.tendon_armature * (m.bias_tendon @ (dot(along, acceleration) + across)))


def _ends_motion(m: InsideModel, d: InsideData) -> tuple[Stacked, Stacked]:
    """Velocity, and acceleration at zero ``qacc`` without gravity, of the second end less the first."""
    offset = m.bias_site @ d.site_xpos - m.bias_root @ d.subtree_com
    twist = m.bias_body @ d.cvel
    rate = m.bias_body @ (m.body_dof @ (d.cdof_dot * d.qvel))
    velocity = twist[3:] + cross(twist[:3], offset)
    acceleration = rate[3:] + cross(rate[:3], offset) + cross(twist[:3], velocity)
    return _difference(velocity), _difference(acceleration)


def _difference(ends: Components) -> Components:
    """Second half of the items less the first."""
    return Components(stop - start for start, stop in (x.unflatten(0, (2, -1)).unbind(0) for x in ends))
