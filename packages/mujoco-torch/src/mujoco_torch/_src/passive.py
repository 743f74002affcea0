"""Passive forces: springs and dampers of joints and tendons (``mj_passive``)."""

import torch

from mujoco_torch._src.components import Components
from mujoco_torch._src.kinematics import joint_quats
from mujoco_torch._src.spatial import quat_mul, quat_to_rotation_vector
from mujoco_torch._src.stage import public
from mujoco_torch._src.tendon import tendon_damper, tendon_spring
from mujoco_torch._src.types import InsideData, InsideModel


@public(
    reads=("qpos", "qvel", "ten_J", "ten_length", "ten_velocity"),
    writes=("qfrc_spring", "qfrc_damper", "qfrc_gravcomp", "qfrc_fluid", "qfrc_adhesion", "qfrc_passive"),
)
def passive(m: InsideModel, d: InsideData) -> InsideData:
    """Linear springs and dampers of every joint type, and those of tendons (``mj_passive``).

    The two disable flags are independent: either clears its own stiffness or damping in ``put_model``.

    Raises:
      StateError: ``qpos`` or ``qvel`` does not fit the model.
    """
    qfrc_damper = -m.dof_damper * d.qvel
    qfrc_spring = _spring(m, d) if m.has_spring else torch.zeros_like(d.qvel)
    if m.tendon_springs:
        qfrc_spring = qfrc_spring + tendon_spring(m, d)
    if m.tendon_dampers:
        qfrc_damper = qfrc_damper + tendon_damper(m, d)
    return d.replace(
        qfrc_spring=qfrc_spring,
        qfrc_damper=qfrc_damper,
        qfrc_gravcomp=torch.zeros_like(d.qvel),
        qfrc_fluid=torch.zeros_like(d.qvel),
        qfrc_adhesion=torch.zeros_like(d.qvel),
        qfrc_passive=qfrc_spring + qfrc_damper,
    )


def _spring(m: InsideModel, d: InsideData):
    stretch = m.qpos_dof.T @ (d.qpos - m.qpos_spring)
    if m.quat_spring:
        w, x, y, z = m.spring_quat.unbind(0)
        turned = quat_mul(Components((w, -x, -y, -z)), joint_quats(m, d.qpos))
        stretch = stretch + m.quat_dof.T @ quat_to_rotation_vector(turned).stack().flatten(0, 1)
    return -m.dof_stiffness * stretch
