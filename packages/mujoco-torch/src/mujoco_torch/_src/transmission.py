"""Actuator lengths and moments (``mj_transmission``), for transmission to joints."""

from torch import Tensor

from mujoco_torch._src.components import join
from mujoco_torch._src.kinematics import joint_quats
from mujoco_torch._src.spatial import dot, quat_to_rotation_vector, rotate
from mujoco_torch._src.stage import public
from mujoco_torch._src.types import InsideData, InsideModel


@public(reads=("qpos",), writes=("actuator_length", "actuator_moment"))
def transmission(m: InsideModel, d: InsideData) -> InsideData:
    """Length and moment of every actuator, joint and joint-in-parent transmission (``mj_transmission``).

    Source: MuJoCo documentation, "Computation", section "Actuation model".

    Departures from C:
      1. ``actuator_moment`` is dense, C stores its rows sparsely.

    Raises:
      StateError: ``qpos`` does not fit the model.
    """
    length = m.actuator_qpos @ d.qpos
    moment = m.actuator_moment0.expand(-1, -1, d.qpos.shape[-1])
    if m.ball_actuator:
        quat = m.actuator_quat @ joint_quats(m, d.qpos)  # zero for an actuator of a slide or hinge
        if m.parent_gear:
            moment = moment + _gear_from_parent(m, quat)
        length = length + _ball_length(m, quat, moment)
    return d.replace(actuator_length=length, actuator_moment=moment.clone())


def _gear_from_parent(m: InsideModel, quat: Tensor) -> Tensor:
    """Moment ``[nout, nv, B]`` of gears given in the parent frame, turned into the frame of the joint."""
    conjugate = join(quat[:1], -quat[1:])
    gear = rotate(conjugate, m.actuator_parentgear)
    return dot(m.actuator_place, gear[:, :, None])


def _ball_length(m: InsideModel, quat: Tensor, moment: Tensor) -> Tensor:
    """Length of actuators on ball joints: gear times rotation vector."""
    gear = (m.actuator_dof3 * moment).sum(2)
    turn = quat_to_rotation_vector(quat)
    return m.actuator_ball * dot(gear, turn)
