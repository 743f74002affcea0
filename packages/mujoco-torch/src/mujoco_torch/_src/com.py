"""Quantities about the centre of mass of each kinematic tree (``mj_comPos``, ``mj_comVel``).

MuJoCo expresses the spatial vectors of one tree about one point, its centre of mass. So velocities and forces of
different bodies add without transport, and recursions along the tree become sums over ancestors: one product with a
constant 0/1 matrix.
"""

from torch import Tensor

from mujoco_torch._src import ops
from mujoco_torch._src.components import Components, join
from mujoco_torch._src.pattern import Pattern
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
    patterns = m.body_subtree, m.body_root, m.dof_jnt, m.dof_turning, m.dof_root
    subtree_com, cinert, cdof = _call(
        d.xquat,
        d.xipos,
        d.ximat,
        d.joined("xanchor", "xaxis"),
        m.joined("body_mass", "body_invsubtreemass", "body_massless", "body_inertia"),
        m.joined("dof_scalar", "dof_linear", "dof_axis", "dof_local_axis"),
        *(pattern.key for pattern in patterns),
    )
    return d.replace(subtree_com=subtree_com, cinert=cinert, cdof=cdof)


def _reference(
    quat: Tensor, ipos: Tensor, imat: Tensor, joints: Tensor, bodies: Tensor, dofs: Tensor, *keys: int
) -> tuple[Tensor, Tensor, Tensor]:
    subtree, root, dof_joint, dof_turning, dof_root = (Pattern.of(key) for key in keys)
    mass, invsubtreemass, massless, inertia = bodies.split((1, 1, 1, 3))
    subtree_com = (subtree @ (mass * ipos)) * invsubtreemass + massless * ipos
    cinert = _inertia(mass[0], inertia, imat, ipos - root @ subtree_com)

    scalar, linear, axis, local_axis = dofs.split((1, 1, 3, 3))
    joint = dof_joint @ joints
    # Balls and free joints turn about the axes of the body itself.
    axis = axis + scalar * joint[3:] + rotate(dof_turning @ quat, local_axis)
    angular = (1.0 - linear[0]) * axis
    cdof = join(angular, linear[0] * axis + cross(angular, dof_root @ subtree_com - joint[:3]))
    return subtree_com, cinert.stack(), cdof.stack()


def _inertia(mass: Tensor, inertia: Tensor, mat: Tensor, offset: Tensor) -> Components:
    """``cinert`` ``[10, nbody, B]``: rotational inertia (xx, yy, zz, xy, xz, yz), mass times offset, mass."""
    x, y, z = offset
    row_x, row_y, row_z = mat[0:3], mat[3:6], mat[6:9]
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


def _fake(quat: Tensor, ipos: Tensor, imat: Tensor, joints: Tensor, *rest) -> tuple[Tensor, Tensor, Tensor]:
    n, worlds = ipos.shape[1:]
    return (
        ipos.new_empty((3, n, worlds)),
        ipos.new_empty((10, n, worlds)),
        ipos.new_empty((6, rest[1].shape[1], worlds)),
    )


_SHARED = (4, 5)
"""Positions of the arguments that are the same in all worlds."""
_operator = ops.define(
    "com(Tensor quat, Tensor ipos, Tensor imat, Tensor joints, Tensor bodies, Tensor dofs, int subtree, int root, "
    "int dof_joint, int dof_turning, int dof_root) -> (Tensor, Tensor, Tensor)",
    _reference,
    _fake,
    shared=_SHARED,
)
_call = ops.fused(_operator, _reference, tensors=6, shared=_SHARED, named=Pattern.of)


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
