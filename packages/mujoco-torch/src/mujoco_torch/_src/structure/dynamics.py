"""Structure and arrays of energies, inverse dynamics and resets."""

import mujoco
import numpy as np

from mujoco_torch._src.enums import DisableBit, EnableBit, IntegratorType, JointType, WarningType
from mujoco_torch._src.layout import STATE
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.structure.arrays import QUAT_JOINTS, Part, disabled, items, select, state_value

KEYED = ("time", "qpos", "qvel", "act", "plastic", "ctrl", "mocap_pos", "mocap_quat")
"""State fields that a keyframe gives."""

# Dofs of the springs of a joint, from its first: those of a free joint are the translation and the rotation.
_SPRINGS = {
    JointType.FREE: ((0, 3), (3, 3)),
    JointType.BALL: ((0, 3),),
    JointType.SLIDE: ((0, 1),),
    JointType.HINGE: ((0, 1),),
}


def energies(mjm: mujoco.MjModel) -> Part:
    """The springs of joints and tendons, with the coefficients of their energies."""
    springs = not disabled(mjm, DisableBit.SPRING)
    groups, joints = [], []  # first dof and number of dofs of each spring, and its joint
    for j in np.flatnonzero((mjm.jnt_stiffness != 0) | mjm.jnt_stiffnesspoly.any(1)) if springs else ():
        for start, size in _SPRINGS[mjm.jnt_type[j]]:
            groups.append((mjm.jnt_dofadr[j] + start, size))
            joints.append(j)
    members = np.zeros((len(groups), mjm.nv))
    for row, (first, size) in enumerate(groups):
        members[row, first : first + size] = 1.0
    signed = np.array([size == 1 for _, size in groups], dtype=float).reshape(-1, 1)
    tendons = springs and bool(mjm.tendon_stiffness.any() or mjm.tendon_stiffnesspoly.any())
    static = dict(
        energy=bool(mjm.opt.enableflags & EnableBit.ENERGY),
        energy_joints=bool(groups),
        energy_quat=any(mjm.jnt_type[j] in QUAT_JOINTS for j in joints),
        energy_tendons=tendons,
    )
    arrays = dict(
        energy_spring=Pattern.of_matrix(members),
        energy_signed=Pattern.of_matrix(members * signed),
        energy_vector=1.0 - signed,
        energy_stiffness=_coefficients(mjm.jnt_stiffness[joints], mjm.jnt_stiffnesspoly[joints]),
        energy_tendon_stiffness=_coefficients(mjm.tendon_stiffness, mjm.tendon_stiffnesspoly),
    )
    return static, arrays


def _coefficients(linear: np.ndarray, higher: np.ndarray) -> np.ndarray:
    """``[3, n, 1]``: what x^2, x^3 and x^4 count in the energy of springs of force ``a x + b x^2 + c x^3``."""
    force = np.concatenate([linear.reshape(-1, 1), higher.reshape(-1, mujoco.mjNPOLY)], 1)
    return items(force / (2.0 + np.arange(force.shape[1])))


def products(mjm: mujoco.MjModel) -> Part:
    """Rows and columns of the elements of the sparse inertia, for products with it; flags of inverse dynamics."""
    row = np.repeat(np.arange(mjm.nv), mjm.M_rownnz)
    col = mjm.M_colind
    static = dict(
        fwdinv=bool(mjm.opt.enableflags & EnableBit.FWDINV),
        invdiscrete=bool(mjm.opt.enableflags & EnableBit.INVDISCRETE),
        passive_off=disabled(mjm, DisableBit.SPRING) and disabled(mjm, DisableBit.DAMPER),
    )
    arrays = dict(
        M_row=select(row, mjm.nv),
        M_col=select(col, mjm.nv),
        M_col_below=select(np.where(row == col, -1, col), mjm.nv),
    )
    return static, arrays


def resets(mjm: mujoco.MjModel) -> Part:
    """What a bad world becomes: a fresh one after one step, by C; and the keyframes."""
    keys = {f"key_{name}": _key(mjm, name) for name in KEYED}
    keys["warning_kind"] = items(np.arange(len(WarningType)))
    static = dict(autoreset=not disabled(mjm, DisableBit.AUTORESET))
    if static["autoreset"]:
        keys |= _fresh(mjm, "stepped", mujoco.mj_step)
        if mjm.opt.integrator == IntegratorType.RK4:  # mj_step2 takes a step of Euler's instead
            keys |= _fresh(mjm, "stepped2", mujoco.mj_step1, mujoco.mj_step2)
    return static, keys


def _key(mjm: mujoco.MjModel, name: str) -> np.ndarray:
    """A field of all keyframes, ``(nkey, ...)``."""
    short = {"mocap_pos": "mpos", "mocap_quat": "mquat"}.get(name, name)
    shape = {"mocap_pos": (mjm.nmocap, 3), "mocap_quat": (mjm.nmocap, 4), "time": ()}
    return np.array(getattr(mjm, f"key_{short}")).reshape(
        mjm.nkey, *shape.get(name, (-1,) if mjm.nkey else (0,))
    )


def _fresh(mjm: mujoco.MjModel, name: str, *functions) -> dict[str, np.ndarray]:
    """The state of a reset world after some functions of C."""
    mjd = mujoco.MjData(mjm)
    for function in functions:
        function(mjm, mjd)
    return {f"{name}_{field}": state_value(mjd, field) for field in STATE if field != "warning"}
