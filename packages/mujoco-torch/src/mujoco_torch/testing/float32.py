"""Parity in float32, by the recipe that MuJoCo ships (``doc/skills/parity`` of its wheel)."""

import collections
from collections.abc import Mapping, Sequence

import mujoco
import numpy as np
import torch

import mujoco_torch as mjt
from mujoco_torch.testing.comparison import FieldError, Report, worlds_of, worst_entry
from mujoco_torch.testing.fields import INTEGRATION, SOLVED_FIELDS
from mujoco_torch.testing.reference import dense_mass, dense_moment, reference_value
from mujoco_torch.testing.states import converged, copy_state

#: (atol, rtol) of each field in float32, as MuJoCo's own parity recipe states them (``doc/skills/parity``
#: of its wheel).
FLOAT32_TOLERANCES: dict[str, tuple[float, float]] = {
    "xpos": (1e-5, 1e-4),
    "xquat": (1e-5, 1e-4),
    "site_xpos": (1e-5, 1e-4),
    "subtree_com": (1e-5, 1e-4),
    "actuator_length": (1e-5, 1e-4),
    "M": (1e-8, 1e-5),
    "actuator_force": (1e-3, 1e-3),
    "qfrc_actuator": (1e-3, 1e-3),
    "qfrc_bias": (1e-3, 1e-3),
    "qfrc_passive": (1e-3, 1e-3),
    "qfrc_smooth": (1e-3, 1e-3),
    "qacc_smooth": (1e-2, 1e-3),
    "qfrc_constraint": (1e-1, 1e-2),
    "qacc": (1e-1, 1e-2),
}
#: Distance from the activation threshold below which float32 may list a contact that float64 does not [m].
GRAZING = 1e-5
_DOWNSTREAM_OF_ACTUATION = frozenset({"qfrc_smooth", "qacc_smooth", "qfrc_constraint", "qacc"})
_THRESHOLD_FIELDS = ("contact.geom", "contact.dist", "contact.includemargin")
_ROUNDING = 8.0 * float(np.finfo(np.float32).eps)


def float32_parity(
    mjm: mujoco.MjModel, states: Sequence[mujoco.MjData], *, device: torch.device | str | None = None
) -> Report:
    """Compares `forward` in float32 with C in float64 by the tolerances of MuJoCo's parity recipe.

    Both sides start from the states rounded to float32. A field's error is |ours - C| / (atol + rtol |C|
    + bound), where the bound is what rounding may do to it (`_actuation_bounds`, `_inertia_bounds`); 1 is
    the limit. Fields downstream of actuation are compared with C run on *our* actuator forces. The number
    of contacts per geom pair must be equal (field ``ncon``), without the contacts within GRAZING of their
    threshold; a world that has such a contact is left out of the fields that depend on the rows.
    """
    mjm = converged(mjm, tolerance=1e-8)
    references = [_rounded(mjm, state) for state in states]
    m = mjt.put_model(mjm, device=device, dtype=torch.float32)
    d = mjt.forward(m, mjt.put_data(m, references))
    for mjd in references:
        mujoco.mj_forward(mjm, mjd)
    fields = {name: worlds_of(m, d, name, single=False) for name in (*FLOAT32_TOLERANCES, *_THRESHOLD_FIELDS)}
    errors = [FieldError(name, 0.0, 1.0) for name in FLOAT32_TOLERANCES]
    contact_error = FieldError("ncon", 0.0, 0.0)
    for world, mjd in enumerate(references):
        ours = {name: values[world].astype(np.float64) for name, values in fields.items()}
        theirs = {name: reference_value(mjm, mjd, name) for name in _THRESHOLD_FIELDS}
        contact_error = max(contact_error, _pair_count_error(world, ours, theirs), key=lambda e: e.error)
        grazing = bool(_grazing(ours).any() or _grazing(theirs).any())
        found = _float32_errors(mjm, mjd, ours, world, grazing)
        errors = [max(pair, key=lambda e: e.error) for pair in zip(errors, found, strict=True)]
    title = f"forward in float32: {len(references)} worlds, errors in tolerances"
    return Report((*errors, contact_error), title)


def _rounded(mjm: mujoco.MjModel, state: mujoco.MjData) -> mujoco.MjData:
    """A new MjData with `state` rounded to float32."""
    values = np.empty(mujoco.mj_stateSize(mjm, INTEGRATION))
    mujoco.mj_getState(mjm, state, values, INTEGRATION)
    new = mujoco.MjData(mjm)
    mujoco.mj_setState(mjm, new, values.astype(np.float32).astype(np.float64), INTEGRATION)
    return new


def _float32_errors(
    mjm: mujoco.MjModel, mjd: mujoco.MjData, ours: Mapping[str, np.ndarray], world: int, grazing: bool
) -> list[FieldError]:
    conditioned = copy_state(mjm, mjd)
    conditioned.qfrc_applied += ours["qfrc_actuator"] - mjd.qfrc_actuator
    mujoco.mj_forward(mjm, conditioned)
    bounds = _actuation_bounds(mjm, mjd) | _inertia_bounds(mjm, conditioned)
    errors = []
    for name, (atol, rtol) in FLOAT32_TOLERANCES.items():
        source = conditioned if name in _DOWNSTREAM_OF_ACTUATION else mjd
        reference = reference_value(mjm, source, name)
        if not reference.size or (grazing and name in SOLVED_FIELDS):
            errors.append(FieldError(name, 0.0, 1.0))
            continue
        divisor = atol + rtol * np.abs(reference) + bounds.get(name, 0.0)
        errors.append(worst_entry(name, world, ours[name], reference, divisor, 1.0))
    return errors


def _grazing(contacts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Which contacts are so near their threshold that float32 may decide otherwise, (ncon,)."""
    return np.abs(contacts["contact.dist"] - contacts["contact.includemargin"]) <= GRAZING


def _pair_count_error(
    world: int, ours: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]
) -> FieldError:
    mine, theirs = _pair_counts(ours), _pair_counts(reference)
    error = 0.0 if mine == theirs else float("inf")
    return FieldError("ncon", error, 0.0, world, (), str(mine.total()), str(theirs.total()))


def _pair_counts(contacts: Mapping[str, np.ndarray]) -> collections.Counter[tuple[int, ...]]:
    """Number of contacts of every geom pair, those near their threshold left out."""
    clear = contacts["contact.geom"][~_grazing(contacts)]
    return collections.Counter(tuple(int(geom) for geom in pair) for pair in np.sort(clear, axis=1))


def _actuation_bounds(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> dict[str, np.ndarray]:
    """What rounding of length and velocity does to the forces of stiff affine actuators: (nout,) and (nv,).

    The force is a difference of terms like kp * ctrl and kp * length, each rounded to its own size.
    """
    force = np.zeros(mjm.nout)
    if not mjm.nout:
        return {}
    low, high = mjm.actuator_ctrlrange.T
    ctrl = np.abs(np.where(mjm.actuator_ctrllimited, np.clip(mjd.ctrl, low, high), mjd.ctrl))
    one = np.flatnonzero((mjm.actuator_ctrlnum == 1) & (mjm.actuator_outnum == 1))
    out = mjm.actuator_outadr[one]
    inputs = np.stack(
        [np.ones(len(one)), np.abs(mjd.actuator_length[out]), np.abs(mjd.actuator_velocity[out])]
    )
    affine_gain = mjm.actuator_gaintype[one] == mujoco.mjtGain.mjGAIN_AFFINE
    affine_bias = mjm.actuator_biastype[one] == mujoco.mjtBias.mjBIAS_AFFINE
    gain = np.abs(mjm.actuator_gainprm[one, :3].T) * inputs
    gain = np.where(affine_gain, gain.sum(axis=0), gain[0])
    bias = np.where(affine_bias, (np.abs(mjm.actuator_biasprm[one, :3].T) * inputs).sum(axis=0), 0.0)
    force[out] = _ROUNDING * (gain * ctrl[mjm.actuator_ctrladr[one]] + bias)
    return {"actuator_force": force, "qfrc_actuator": np.abs(dense_moment(mjm, mjd)).T @ force}


def _inertia_bounds(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> dict[str, np.ndarray]:
    """What rounding does to M, and through its inverse to the accelerations: (nC,), (nv,), (nv,).

    An entry of M is a sum of parallel-axis terms that may be far larger than it (`inertia_magnitude`);
    an error e of M and of the force f changes the solution x of M x = f by at most |M^-1| (e |x| + |error
    of f|).
    """
    magnitude = inertia_magnitude(mjm, mjd)
    inverse = np.abs(np.linalg.inv(dense_mass(mjm, mjd)))

    def solution_bound(x: np.ndarray, force: np.ndarray) -> np.ndarray:
        return _ROUNDING * (inverse @ (magnitude @ np.abs(x) + force))

    smooth = np.abs(mjd.qfrc_smooth)
    return {
        "M": _ROUNDING * magnitude[np.repeat(np.arange(mjm.nv), mjm.M_rownnz), mjm.M_colind],
        "qacc_smooth": solution_bound(mjd.qacc_smooth, smooth),
        "qacc": solution_bound(mjd.qacc, smooth + np.abs(mjd.qfrc_constraint)),
    }


def inertia_magnitude(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> np.ndarray:
    """M computed from the absolute values of all terms summed into it, (nv, nv).

    To MuJoCo's recipe it adds the terms behind the lever arms: they are differences of world positions, whose
    rounding grows with the distance from the world's origin.
    """
    reach = np.abs(mjd.xipos).max()
    spatial = np.abs(np.stack([_spatial_inertia(cinert) for cinert in mjd.cinert]))
    spatial += reach * mjm.body_mass[:, None, None] * _LEVER
    for body in range(mjm.nbody - 1, 0, -1):
        spatial[mjm.body_parentid[body]] += spatial[body]
    cdof = np.abs(mjd.cdof)
    cdof[:, 3:] += reach * (cdof[:, :3] @ _LEVER[:3, 3:])
    full = np.einsum("jk,ikl,il->ij", cdof, spatial[mjm.dof_bodyid], cdof)
    lower = full * _dof_ancestors(mjm)
    return np.maximum(lower, lower.T) + np.diag(mjm.dof_armature)


def _dof_ancestors(mjm: mujoco.MjModel) -> np.ndarray:
    """True at [i, j] if dof j is i or an ancestor of it, (nv, nv).

    The sparsity pattern of M is smaller: C leaves out what is zero for a body framed by its inertia.
    """
    ancestors = np.eye(mjm.nv, dtype=bool)
    for dof in range(mjm.nv):
        if mjm.dof_parentid[dof] >= 0:
            ancestors[dof] |= ancestors[mjm.dof_parentid[dof]]
    return ancestors


#: Where lever arms stand in a spatial inertia: rotation about one axis, translation along another.
_LEVER = np.kron(np.array([[0.0, 1.0], [1.0, 0.0]]), 1.0 - np.eye(3))


def _spatial_inertia(cinert: np.ndarray) -> np.ndarray:
    """6x6 matrix, rotation first, of a com-based inertia (xx, yy, zz, xy, xz, yz, m x, m y, m z, m)."""
    xx, yy, zz, xy, xz, yz, x, y, z, mass = cinert
    rotation = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    moment = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.block([[rotation, moment], [moment.T, mass * np.eye(3)]])
