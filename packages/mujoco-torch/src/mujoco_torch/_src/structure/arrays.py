"""Small constructors of inside-layout arrays, and facts about a model that several parts need."""

from typing import Any

import mujoco
import numpy as np

from mujoco_torch._src.enums import DisableBit, JointType, SameFrame
from mujoco_torch._src.pattern import Pattern

MINVAL = mujoco.mjMINVAL
IDENTITY = (1.0, 0.0, 0.0, 0.0)
QUAT_JOINTS = (JointType.FREE, JointType.BALL)
SCALAR_JOINTS = (JointType.SLIDE, JointType.HINGE)

Part = tuple[dict[str, Any], dict[str, Any]]
"""What a part of the model gives: static values; arrays in the inside layout, and patterns."""


def items(x: np.ndarray) -> np.ndarray:
    """Array ``(n, ...)`` of per-item values, components first and a world axis last."""
    x = np.asarray(x, dtype=np.float64)
    if x.ndim == 1:
        return x[:, None]
    return x.reshape(len(x), int(np.prod(x.shape[1:]))).T[..., None]


def frames(pos: np.ndarray, quat: np.ndarray) -> np.ndarray:
    """Frames ``[7, n, 1]`` of positions ``(n, 3)`` and quaternions ``(n, 4)``."""
    return items(np.concatenate([pos.reshape(-1, 3), quat.reshape(-1, 4)], 1))


def placed(mjm: mujoco.MjModel, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Positions and quaternions of the inertial frames (``body``), geoms or sites in the frames of their bodies.

    As in C, a frame that the compiler found the same as that of the body or of its inertia (``sameframe``, to 1e-6), or
    turned like it, is taken for it.
    """
    if kind == "body":
        pos, quat, body = mjm.body_ipos, mjm.body_iquat, np.arange(mjm.nbody)
        inertial = np.zeros((mjm.nbody, 3)), np.tile(IDENTITY, (mjm.nbody, 1))  # not the same as itself
    else:
        pos, quat, body = (getattr(mjm, f"{kind}_{what}") for what in ("pos", "quat", "bodyid"))
        inertial = placed(mjm, "body")
    same = getattr(mjm, f"{kind}_sameframe")[:, None]
    of_body = same == SameFrame.BODY, np.isin(same, (SameFrame.BODY, SameFrame.BODYROT))
    of_inertia = same == SameFrame.INERTIA, np.isin(same, (SameFrame.INERTIA, SameFrame.INERTIAROT))
    pos = np.where(of_body[0], 0.0, np.where(of_inertia[0], inertial[0][body], pos))
    return pos, np.where(of_body[1], IDENTITY, np.where(of_inertia[1], inertial[1][body], quat))


def select(ids, n: int) -> Pattern:
    """Picks item ``ids[i]`` of n into row ``i``; a negative id gives a zero row."""
    return Pattern([(row, i, 1) for row, i in enumerate(ids) if i >= 0], (len(ids), n))


def state_value(mjd: mujoco.MjData, name: str) -> np.ndarray:
    """C's value of a state field; of warnings their numbers."""
    if name == "warning":
        return np.array([warning.number for warning in mjd.warning])
    return np.array(getattr(mjd, name))


def disabled(mjm: mujoco.MjModel, bit: DisableBit) -> bool:
    """Whether any of the disable flags is set."""
    return bool(mjm.opt.disableflags & bit)


def moved_by(mjm: mujoco.MjModel) -> np.ndarray:
    """0/1 matrix ``(nbody, nv)``: 1 if the dof moves the body."""
    moved = np.zeros((mjm.nbody, mjm.nv))
    for b in range(1, mjm.nbody):
        moved[b] = moved[mjm.body_parentid[b]]
        moved[b, mjm.body_dofadr[b] : mjm.body_dofadr[b] + mjm.body_dofnum[b]] = 1.0
    return moved


def translates(mjm: mujoco.MjModel, dof: int) -> bool:
    """Whether a dof is a slide, or one of the three translations of a free joint."""
    joint = mjm.dof_jntid[dof]
    kind = mjm.jnt_type[joint]
    return bool(kind == JointType.SLIDE or (kind == JointType.FREE and dof < mjm.jnt_dofadr[joint] + 3))
