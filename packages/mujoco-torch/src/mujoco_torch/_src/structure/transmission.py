"""Structure and arrays of what the actuators act on."""

import mujoco
import numpy as np

from mujoco_torch._src.enums import JointType, TrnType
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.structure.arrays import QUAT_JOINTS, SCALAR_JOINTS, Part, items, select


def transmissions(mjm: mujoco.MjModel) -> Part:
    """Lengths and moments of the actuators."""
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

    # The moments' elements that can be other than zero, row by row.
    elements = np.argwhere((moment != 0) | place.any(0))
    row, col = elements.T
    index = {(int(u), int(dof)): e for e, (u, dof) in enumerate(elements)}
    turned = [(index[u, dof], k * nu + u, 1) for k, u, dof in np.argwhere(place)]
    static = dict(ball_actuator=any(q >= 0 for q in quat_of), parent_gear=bool(rotate_gear.any()))
    arrays = dict(
        actuator_qpos=length,
        moment0=moment[row, col][:, None],
        moment_row=select(row, nu),
        moment_col=select(col, nv),
        moment_dense=select(row * nv + col, nu * nv).T,
        moment_place=Pattern(turned, (len(elements), 3 * nu)),
        moment_gear=_ball_gears(mjm, quat_of, quat, index),
        actuator_quat=select(quat_of, len(quat)),
        actuator_parentgear=items(rotate_gear.reshape(nu, 3)),
        actuator_ball=items(length_gear),
    )
    return static, arrays


def _ball_gears(mjm: mujoco.MjModel, quat_of: list[int], quat: list[int], index: dict) -> Pattern:
    """Selects the moments of an actuator at the turning dofs of the ball or free joint that it drives."""
    entries = []
    for u, q in enumerate(quat_of):
        if q < 0:
            continue
        dof = mjm.jnt_dofadr[quat[q]] + (3 if mjm.jnt_type[quat[q]] == JointType.FREE else 0)
        entries += [(k * mjm.nu + u, index[u, dof + k], 1) for k in range(3) if (u, dof + k) in index]
    return Pattern(entries, (3 * mjm.nu, len(index)))
