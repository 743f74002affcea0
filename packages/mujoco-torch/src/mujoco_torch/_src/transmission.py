"""Actuator lengths and moments (``mj_transmission``), for transmission to joints."""

from torch import Tensor

from mujoco_torch._src.components import Components, join
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
    moment = m.moment0.expand(-1, d.qpos.shape[-1])
    if m.ball_actuator:
        quat = m.actuator_quat @ joint_quats(m, d.qpos)  # zero for an actuator of a slide or hinge
        if m.parent_gear:
            moment = moment + m.moment_place @ _parent_gear(m, quat).stack().flatten(0, 1)
        length = length + _ball_length(m, quat, moment)
    dense = (m.moment_dense @ moment).unflatten(0, (m.nout, m.nv))
    return d.replace(actuator_length=length, actuator_moment=dense, moment=moment)


def moments(m: InsideModel, d: InsideData) -> Tensor:
    """The elements ``[nJ, B]`` of the moments that are not zero by the model's structure."""
    carried = d.fields.get("moment")
    return m.moment_dense.T @ d.actuator_moment.flatten(0, 1) if carried is None else carried


def _parent_gear(m: InsideModel, quat: Tensor) -> Components:
    """Gears given in the parent frame ``[3, nout, B]``, turned into the frame of the joint."""
    return rotate(join(quat[:1], -quat[1:]), m.actuator_parentgear)


def _ball_length(m: InsideModel, quat: Tensor, moment: Tensor) -> Tensor:
    """Length of actuators on ball joints: gear times rotation vector."""
    gear = (m.moment_gear @ moment).unflatten(0, (3, m.nout))
    turn = quat_to_rotation_vector(quat)
    return m.actuator_ball * dot(gear, turn)
