"""MuJoCo C's values of our fields, in our shapes."""

from collections.abc import Callable

import mujoco
import numpy as np

from mujoco_torch.testing.fields import FIELDS, MATRIX_FIELDS


def expected(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> dict[str, np.ndarray]:
    """Returns C's value of every field in `FIELDS`, in the shapes of `Data` without the world axis.

    Matrices are 3x3; actuator_moment, ten_J and efc_J are dense: (nout, nv), (ntendon, nv), (nefc, nv). Only what
    C lists is there: ncon contacts, nefc rows. Nothing is computed: fields are what the last C function left in
    `mjd`. Arrays are copies.
    """
    return {name: reference_value(mjm, mjd, name) for name in FIELDS}


def reference_value(mjm: mujoco.MjModel, mjd: mujoco.MjData, name: str) -> np.ndarray:
    """C's value of one field, in our shape."""
    if name in _DENSE:
        return _DENSE[name](mjm, mjd)
    if name.startswith("contact."):
        return _contact_field(mjd, name.removeprefix("contact."))
    value = np.array(getattr(mjd, name))
    return value.reshape(-1, 3, 3) if name in MATRIX_FIELDS else value


def _contact_field(mjd: mujoco.MjData, name: str) -> np.ndarray:
    value = np.array(getattr(mjd.contact, name))
    return value.reshape(-1, 3, 3) if name == "frame" else value


def dense_mass(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> np.ndarray:
    """The joint-space inertia, ``(nv, nv)``."""
    dense = np.zeros((mjm.nv, mjm.nv))
    mujoco.mj_fullM(mjm, mjd, dense)
    return dense


def dense_moment(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> np.ndarray:
    """The actuator moments, ``(nout, nv)``."""
    dense = np.zeros((mjm.nout, mjm.nv))
    if dense.size:
        mujoco.mju_sparse2dense(
            dense, mjd.actuator_moment, mjd.moment_rownnz, mjd.moment_rowadr, mjd.moment_colind
        )
    return dense


def dense_tendon(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> np.ndarray:
    """The tendon Jacobians, ``(ntendon, nv)``."""
    dense = np.zeros((mjm.ntendon, mjm.nv))
    if dense.size:
        mujoco.mju_sparse2dense(dense, mjd.ten_J, mjm.ten_J_rownnz, mjm.ten_J_rowadr, mjm.ten_J_colind)
    return dense


def _dense_jacobian(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> np.ndarray:
    dense = np.zeros((mjd.nefc, mjm.nv))
    if not mujoco.mj_isSparse(mjm):
        # C leaves room for the rows of contacts that turn out to have none (between bodies that cannot move).
        return np.array(mjd.efc_J[: dense.size]).reshape(dense.shape)
    if dense.size:
        mujoco.mju_sparse2dense(dense, mjd.efc_J, mjd.efc_J_rownnz, mjd.efc_J_rowadr, mjd.efc_J_colind)
    return dense


_DENSE: dict[str, Callable[[mujoco.MjModel, mujoco.MjData], np.ndarray]] = {
    "actuator_moment": dense_moment,
    "ten_J": dense_tendon,
    "efc_J": _dense_jacobian,
    "warning": lambda _, mjd: np.array([warning.number for warning in mjd.warning]),
}
