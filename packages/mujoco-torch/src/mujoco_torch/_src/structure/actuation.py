"""Structure and arrays of the actuators."""

import mujoco
import numpy as np

from mujoco_torch._src.enums import BiasType, GainType, JointType, TrnType
from mujoco_torch._src.structure.arrays import QUAT_JOINTS, SCALAR_JOINTS, Part, items, select


def actuators(mjm: mujoco.MjModel) -> Part:
    """Moments, gains, biases and clamps of the actuators."""
    nu, nv, nq = mjm.nu, mjm.nv, mjm.nq
    quat = [j for j in range(mjm.njnt) if mjm.jnt_type[j] in QUAT_JOINTS]
    moment = np.zeros((nu, nv))
    length = np.zeros((nu, nq))
    rotate_gear = np.zeros((nu, 3))  # gear given in the parent frame, to be turned into the joint's
    quat_of = [-1] * nu
    place = np.zeros((3, nu, nv))  # where the turned gear goes
    length_gear = np.zeros(nu)  # 1 where a ball's rotation vector gives the length
    for u in range(nu):
        j, gear = mjm.actuator_trnid[u, 0], mjm.actuator_gear[u]
        dof, kind = mjm.jnt_dofadr[j], mjm.jnt_type[j]
        if kind in SCALAR_JOINTS:
            moment[u, dof] = length[u, mjm.jnt_qposadr[j]] = gear[0]
            continue
        quat_of[u] = quat.index(j)
        turn, dof_turn = (gear[3:6], dof + 3) if kind == JointType.FREE else (gear[:3], dof)
        if kind == JointType.FREE:
            moment[u, dof : dof + 3] = gear[:3]
        else:
            length_gear[u] = 1.0
        if mjm.actuator_trntype[u] == TrnType.JOINTINPARENT:
            rotate_gear[u] = turn
            place[np.arange(3), u, dof_turn + np.arange(3)] = 1.0
        else:
            moment[u, dof_turn : dof_turn + 3] = turn

    affine_gain = mjm.actuator_gaintype == GainType.AFFINE
    affine_bias = mjm.actuator_biastype == BiasType.AFFINE
    gain = mjm.actuator_gainprm[:, :3] * np.stack([np.ones(nu), affine_gain, affine_gain], 1)
    bias = mjm.actuator_biasprm[:, :3] * affine_bias[:, None]
    ctrllimited = mjm.actuator_ctrllimited.astype(bool)
    frclimited = mjm.actuator_forcelimited.astype(bool)
    static = dict(ball_actuator=any(q >= 0 for q in quat_of), parent_gear=bool(rotate_gear.any()))
    arrays = dict(
        actuator_qpos=length,
        actuator_moment0=moment[..., None],
        actuator_quat=select(quat_of, len(quat)),
        actuator_parentgear=items(rotate_gear.reshape(nu, 3)),
        actuator_place=place[..., None],
        actuator_ball=items(length_gear),
        actuator_dof3=_ball_gear_dofs(mjm, quat_of, quat),
        actuator_gain=items(gain.reshape(nu, 3)),
        actuator_bias=items(bias.reshape(nu, 3)),
        actuator_ctrlmin=items(np.where(ctrllimited, mjm.actuator_ctrlrange[:, 0], -np.inf)),
        actuator_ctrlmax=items(np.where(ctrllimited, mjm.actuator_ctrlrange[:, 1], np.inf)),
        actuator_forcemin=items(np.where(frclimited, mjm.actuator_forcerange[:, 0], -np.inf)),
        actuator_forcemax=items(np.where(frclimited, mjm.actuator_forcerange[:, 1], np.inf)),
    )
    return static, arrays


def _ball_gear_dofs(mjm: mujoco.MjModel, quat_of: list[int], quat: list[int]) -> np.ndarray:
    """``(3, nu, nv, 1)``: 1 at the turning dofs of the ball or free joint that an actuator drives."""
    out = np.zeros((3, mjm.nu, mjm.nv, 1))
    for u, q in enumerate(quat_of):
        if q >= 0:
            dof = mjm.jnt_dofadr[quat[q]] + (3 if mjm.jnt_type[quat[q]] == JointType.FREE else 0)
            out[np.arange(3), u, dof + np.arange(3), 0] = 1.0
    return out
