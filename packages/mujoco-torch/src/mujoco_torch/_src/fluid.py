"""Forces of the surrounding medium: drag, lift, viscosity and added mass (``mj_fluid``).

A body moves through the medium either as the box that has its inertia, or as the ellipsoids of its geoms. The forces of
both are static functions of the velocity against the medium, in the frame of the box or geom.

Source: MuJoCo documentation, chapter "Fluid forces".
"""

import torch
from torch import Tensor

from mujoco_torch._src.components import Components, join
from mujoco_torch._src.spatial import Stacked, cross, dot, norm, normalize
from mujoco_torch._src.types import InsideData, InsideModel

TINY = 1e-30  # a squared cosine below it is none, in float32, too


def fluid(m: InsideModel, d: InsideData) -> Tensor:
    """Generalized force ``[nv, B]`` of the medium [N, Nm] (``qfrc_fluid``)."""
    total = torch.zeros_like(d.qvel)
    if m.fluid_boxes:
        pos, mat = m.fluid_box_body @ d.xipos, m.fluid_box_body @ d.ximat
        total = total + _joint_force(m, d, "fluid_box", pos, mat, _box_force)
    if m.fluid_ellipsoids:
        pos, mat = m.fluid_geom @ d.geom_xpos, m.fluid_geom @ d.geom_xmat
        total = total + _joint_force(m, d, "fluid_geom", pos, mat, _ellipsoid_force)
    return total


def _joint_force(m: InsideModel, d: InsideData, name: str, pos: Tensor, mat: Tensor, model) -> Tensor:
    """What a model of the force, of local angular and linear velocity, gives at the dofs."""
    offset = pos - getattr(m, f"{name}_root") @ d.subtree_com
    velocity = getattr(m, f"{name}_body") @ d.cvel
    linear = velocity[3:] + cross(velocity[:3], offset) - m.wind
    torque, force = (to_world(mat, x) for x in model(m, to_local(mat, velocity[:3]), to_local(mat, linear)))
    return dof_force(d, getattr(m, f"{name}_dof"), offset, force, torque)


def dof_force(d: InsideData, dofs, offset: Stacked, force: Stacked, torque: Stacked | None = None) -> Tensor:
    """Generalized force of forces and torques at points, given from the centre of mass of their tree.

    ``dofs`` is the pattern of the dofs that move the points.
    """
    moment = cross(offset, force) if torque is None else torque + cross(offset, force)
    return (d.cdof * (dofs @ join(moment, force))).sum(0)


def to_local(mat: Stacked, v: Stacked) -> Components:
    return Components(dot(mat[i::3], v) for i in range(3))


def to_world(mat: Stacked, v: Stacked) -> Components:
    return Components(dot(mat[3 * i : 3 * i + 3], v) for i in range(3))


def _box_force(m: InsideModel, w: Components, v: Components) -> tuple[Components, Components]:
    """Torque and force on boxes: viscous friction of a sphere, and quadratic drag of each side."""
    torque = -(m.fluid_box_viscous_turn * w + _times_size(m.fluid_box_drag_turn, w))
    force = -(m.fluid_box_viscous * v + _times_size(m.fluid_box_drag, v))
    return torque, force


def _times_size(factor: Tensor, v: Components) -> Components:
    return Components(f * x.abs() * x for f, x in zip(factor, v, strict=True))


def _ellipsoid_force(m: InsideModel, w: Components, v: Components) -> tuple[Components, Components]:
    """Torque and force on ellipsoids."""
    along, speed = normalize(v)
    area, lift = _projection(m, along)
    momentum = m.fluid_mass * v
    drag = m.fluid_viscous + speed * (m.fluid_drag + m.fluid_drag_area * area)
    turn_drag = m.fluid_viscous_turn + m.fluid_drag_turn * norm(m.fluid_turn_axes * w)
    force = cross(momentum, w) + m.fluid_magnus * cross(w, v) - drag * v
    force = force + (m.fluid_kutta * area * speed * speed) * lift
    torque = cross(momentum, v) + cross(m.fluid_inertia * w, w) - turn_drag * w
    return torque, force


def _projection(m: InsideModel, along: Components) -> tuple[Tensor, Components]:
    """Area that an ellipsoid shows to the flow, and direction of the lift times its part of the area's pressure.

    The lift is in the plane of the flow ``u`` and the normal ``n`` of the projected area, orthogonal to the flow:
    ``cos(alpha) (n x u) x u``.
    """
    normal, _, _, area, cosine = section(m, along)
    return area, cosine * cross(cross(normal, along), along)


def section(m: InsideModel, along: Components) -> tuple[Components, Tensor, Tensor, Tensor, Tensor]:
    """The section of ellipsoids orthogonal to the flow: normal n, n.u and n.n, area, and n.u / n.n.

    Where nothing is seen, area and the last are zero, and the two before are 1.
    """
    normal = Components(q * u for q, u in zip(m.fluid_sections, along, strict=True))
    num, denom = dot(normal, along), dot(normal, normal)
    seen = (num > TINY) & (denom > TINY)
    safe_num, safe_denom = torch.where(seen, num, 1.0), torch.where(seen, denom, 1.0)
    area = torch.where(seen, m.fluid_area * (safe_denom / safe_num).sqrt(), 0.0)
    cosine = torch.where(seen, safe_num / safe_denom, 0.0)
    return normal, safe_num, safe_denom, area, cosine
