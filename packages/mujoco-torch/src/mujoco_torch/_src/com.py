"""Quantities about the centre of mass of each kinematic tree (``mj_comPos``, ``mj_comVel``).

MuJoCo expresses the spatial vectors of one tree about one point, its centre of mass. So velocities and forces of
different bodies add without transport, and recursions along the tree become sums over ancestors: one product with a
constant 0/1 matrix.
"""

from torch import Tensor

from mujoco_torch._src.components import Components, join
from mujoco_torch._src.spatial import cross, dot, motion_cross, rotate
from mujoco_torch._src.stage import public
from mujoco_torch._src.types import InsideData, InsideModel


@public(reads=("xquat", "xipos", "ximat", "xanchor", "xaxis"), writes=("subtree_com", "cinert", "cdof"))
def com_pos(m: InsideModel, d: InsideData) -> InsideData:
    """Centres of mass, inertias and motion axes about them (``mj_comPos``).

    Source: MuJoCo documentation, "Computation", section "Kinematic tree"; Featherstone (2008), ch. 2.

    Raises:
      StateError: the poses of ``d`` do not fit the model.
    """
    subtree_com = (m.body_subtree @ (m.body_mass * d.xipos)) * m.body_invsubtreemass
    subtree_com = subtree_com + m.body_massless * d.xipos
    return d.replace(
        subtree_com=subtree_com,
        cinert=_inertia_about_com(m, d, subtree_com),
        cdof=_motion_axes(m, d, subtree_com),
    )


def _inertia_about_com(m: InsideModel, d: InsideData, subtree_com: Tensor) -> Components:
    """``cinert`` ``[10, nbody, B]``: rotational inertia (xx, yy, zz, xy, xz, yz), mass times offset, mass."""
    offset = d.xipos - m.once("body_root", subtree_com)
    x, y, z = offset.unbind(0)
    mass, inertia = m.body_mass, m.body_inertia
    row_x, row_y, row_z = d.ximat[0:3], d.ximat[3:6], d.ximat[6:9]
    scaled_x, scaled_y, scaled_z = inertia * row_x, inertia * row_y, inertia * row_z
    return Components(
        (
            dot(scaled_x, row_x) + mass * (y * y + z * z),
            dot(scaled_y, row_y) + mass * (x * x + z * z),
            dot(scaled_z, row_z) + mass * (x * x + y * y),
            dot(scaled_x, row_y) - mass * x * y,
            dot(scaled_x, row_z) - mass * x * z,
            dot(scaled_y, row_z) - mass * y * z,
            mass * x,
            mass * y,
            mass * z,
            mass.expand_as(x),
        )
    )


def _motion_axes(m: InsideModel, d: InsideData, subtree_com: Tensor) -> Components:
    """``cdof`` ``[6, nv, B]``: the spatial velocity of a body for unit velocity of each dof that moves it."""
    joint = m.dof_jnt @ d.joined("xanchor", "xaxis")
    axis = m.dof_scalar * joint[3:]
    if m.nquat:  # balls and free joints turn about the axes of the body itself
        axis = axis + rotate(m.dof_turning @ d.xquat, m.dof_local_axis) + m.dof_axis
    offset = m.dof_root @ subtree_com - joint[:3]
    angular = (1.0 - m.dof_linear) * axis
    return join(angular, m.dof_linear * axis + cross(angular, offset))


@public(reads=("qvel", "cdof"), writes=("cvel", "cdof_dot"))
def com_vel(m: InsideModel, d: InsideData) -> InsideData:
    """Velocities of bodies and time-derivatives of the motion axes (``mj_comVel``).

    Source: Featherstone (2008), ch. 5; the velocity just before a dof is a sum over its ancestors.

    Raises:
      StateError: ``qvel`` or ``cdof`` does not fit the model.
    """
    motion = d.cdof * d.qvel
    velocity = m.velocity_dof @ motion  # of the bodies, then just before each dof
    return d.replace(cvel=velocity[:, : m.nbody], cdof_dot=motion_cross(velocity[:, m.nbody :], d.cdof))
