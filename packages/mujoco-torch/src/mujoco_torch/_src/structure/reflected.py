"""Damping and armature of actuators, felt by the joint or tendon that they drive."""

from typing import NamedTuple

import mujoco
import numpy as np

from mujoco_torch._src.enums import TrnType

_ON_JOINT = (TrnType.JOINT, TrnType.JOINTINPARENT)


class Reflected(NamedTuple):
    """Parameters of the dofs and tendons with what their actuators add."""

    dof_damping: np.ndarray
    dof_dampingpoly: np.ndarray
    dof_armature: np.ndarray
    tendon_damping: np.ndarray
    tendon_dampingpoly: np.ndarray
    tendon_armature: np.ndarray


def reflected(mjm: mujoco.MjModel) -> Reflected:
    """Adds ``gear^2`` times the actuators' own (``mj_actuatorDamping``, ``mj_actuatorArmature``).

    The gear is the first component, also on a ball or free joint, all dofs of which get the same. It does not matter
    whether the actuator is in a disabled group, nor whether actuation is disabled. As in C,
    ``jnt_actuatorid`` and ``tendon_actuatorid`` say where to look: at nothing (-1), one actuator, or all (-2).
    """
    gear2 = mjm.actuator_gear[mjm.actuator_outadr, 0] ** 2 if mjm.nactuator else np.zeros(0)
    terms = np.concatenate(
        [mjm.actuator_damping[:, None], mjm.actuator_dampingpoly, mjm.actuator_armature[:, None]], axis=1
    )
    terms = terms * gear2[:, None]

    def added(marks: np.ndarray, kinds: tuple[int, ...]) -> np.ndarray:
        total = np.zeros((len(marks), terms.shape[1]))
        for target, mark in enumerate(marks):
            if mark >= 0:
                total[target] = terms[mark]
            elif mark < -1:
                mine = np.isin(mjm.actuator_trntype, kinds) & (mjm.actuator_trnid[:, 0] == target)
                total[target] = terms[mine].sum(0)
        return total

    dof = added(mjm.jnt_actuatorid, _ON_JOINT)[mjm.dof_jntid]
    tendon = added(mjm.tendon_actuatorid, (TrnType.TENDON,))
    return Reflected(
        mjm.dof_damping + dof[:, 0],
        mjm.dof_dampingpoly + dof[:, 1:-1],
        mjm.dof_armature + dof[:, -1],
        mjm.tendon_damping + tendon[:, 0],
        mjm.tendon_dampingpoly + tendon[:, 1:-1],
        mjm.tendon_armature + tendon[:, -1],
    )
