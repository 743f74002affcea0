"""Parity with MuJoCo C, measured: states to compare on, C's values in our layout, errors, stages, rollouts.

The functions here are what the library's own tests use, and they serve a user's model just as well::

    mjm = mujoco.MjModel.from_xml_path("robot.xml")
    states = perturbed_states(mjm, nworld=4, seed=0)
    for stage in STAGES:
        print(stage_parity(mjm, stage, states))

How errors are measured. An entry's error is its absolute difference from C divided by the *scale* of its
field: the largest magnitude C has, over all worlds and items, in that component (the x of all positions,
column j of the mass matrix), but at least ``COMPONENT_FLOOR`` of the field's largest magnitude, and at
least ``SCALE_FLOOR``. An entry-wise relative error is meaningless for the many entries that are zero up
to rounding (the y of a planar robot); the fields in ``ENTRYWISE``, which are positive and span many
decades, do use it. Integer fields must be equal.

Constraint rows and contacts are compacted first: of our static slots only the active ones count, which must
be the rows and contacts C lists, in C's order. Another number of them is an infinite error of every field
that lists them.
"""

import collections
import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import mujoco
import numpy as np
import torch

import mujoco_torch as mjt

__all__ = [
    "STAGES",
    "FieldError",
    "Report",
    "Rollout",
    "Stage",
    "compare",
    "converged",
    "copy_state",
    "expected",
    "float32_parity",
    "perturbed_states",
    "rollout_parity",
    "stage_parity",
]

#: Smooth quantities: sums of a few hundred products of order one leave 1e-13 or less, so 1e-10 has room for
#: badly conditioned inertia and still catches any formula that differs.
SMOOTH = 1e-10
#: Contact geometry and what follows from it: normals divide by short lengths near degenerate poses.
GEOMETRY = 1e-8
#: Result of a converged iterative solve; both solvers stop on a tolerance, not at the optimum.
SOLVED = 1e-6

#: Share of a field's largest magnitude below which a component's own scale is not used.
COMPONENT_FLOOR = 1e-4
#: Smallest scale of any field; below it a field is rounding noise (forces of an unloaded robot at 1e-17).
SCALE_FLOOR = 1e-6

ENTRYWISE = frozenset({"efc_D"})

STATE_FIELDS = ("time", "qpos", "qvel", "act", "qacc_warmstart")
INPUT_FIELDS = ("ctrl", "qfrc_applied", "xfrc_applied")
POSE_FIELDS = (
    "xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "geom_xpos", "geom_xmat", "site_xpos",
    "site_xmat",
)  # fmt: skip
COM_FIELDS = ("subtree_com", "cinert", "cdof")
CAMERA_FIELDS = ("cam_xpos", "cam_xmat", "light_xpos", "light_xdir")
INERTIA_FIELDS = ("crb", "M")
CONTACT_FIELDS = (
    "ncon", "contact.geom", "contact.dim", "contact.includemargin", "contact.friction", "contact.dist",
    "contact.pos", "contact.frame",
)  # fmt: skip
TRANSMISSION_FIELDS = ("actuator_length", "actuator_moment")
COM_VELOCITY_FIELDS = ("cvel", "cdof_dot")
PASSIVE_FIELDS = ("qfrc_spring", "qfrc_damper", "qfrc_passive")
ROW_FIELDS = ("nefc", "efc_J", "efc_pos", "efc_D", "efc_vel", "efc_aref")
ACTUATION_FIELDS = ("act_dot", "actuator_force", "qfrc_actuator")
ACCELERATION_FIELDS = ("qfrc_smooth", "qacc_smooth")
SOLVE_FIELDS = ("qacc", "qfrc_constraint", "efc_force")
POSITION_FIELDS = (
    *POSE_FIELDS, *COM_FIELDS, *CAMERA_FIELDS, *INERTIA_FIELDS, "qLD", *CONTACT_FIELDS, *TRANSMISSION_FIELDS,
)  # fmt: skip
VELOCITY_FIELDS = ("actuator_velocity", *COM_VELOCITY_FIELDS, *PASSIVE_FIELDS, "qfrc_bias", *ROW_FIELDS)

#: Every field `expected` knows, in the order of the pipeline: the first field in error points at the cause.
FIELDS: tuple[str, ...] = (
    *STATE_FIELDS, *INPUT_FIELDS, *POSITION_FIELDS, *VELOCITY_FIELDS, *ACTUATION_FIELDS, *ACCELERATION_FIELDS,
    *SOLVE_FIELDS,
)  # fmt: skip

_MATRIX_FIELDS = frozenset({"xmat", "ximat", "geom_xmat", "site_xmat", "cam_xmat"})
_SOLVED_FIELDS = frozenset({*SOLVE_FIELDS, "qacc_warmstart"})
_INTEGRATION = int(mujoco.mjtState.mjSTATE_INTEGRATION)


# ---------------------------------------------------------------------------------------------- states


def copy_state(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> mujoco.MjData:
    """Returns a new MjData with the integration state of `mjd`; everything derived is as after a reset."""
    new = mujoco.MjData(mjm)
    mujoco.mj_copyState(mjm, mjd, new, _INTEGRATION)
    return new


def converged(mjm: mujoco.MjModel, tolerance: float = 1e-12, iterations: int = 100) -> mujoco.MjModel:
    """Returns a copy of `mjm` whose solver goes on until it has converged.

    Two Newton solvers that stop early stop at different points when a rounding error decides a step of
    the line search. Physics is compared at the optimum.
    """
    mjm = copy.copy(mjm)
    mjm.opt.tolerance = tolerance
    mjm.opt.iterations = iterations
    mjm.opt.ls_iterations = max(50, mjm.opt.ls_iterations)
    return mjm


def perturbed_states(
    mjm: mujoco.MjModel, nworld: int, seed: int = 0, *, settle: int = 400, scale: float = 1.0
) -> list[mujoco.MjData]:
    """Returns `nworld` different states; derived quantities are not computed.

    Every world starts at a keyframe (world w takes keyframe w modulo their number) or at qpos0, moved by
    a random displacement in the tangent space, with random velocity, time, controls a little beyond their
    range (so that clamping matters), forces on joints and wrenches on all bodies, in proportion to
    inertia. Worlds with an odd index then run `settle` steps of MuJoCo C without the applied forces and
    with a fifth of the controls: they rest or slide in contact, with the warm start of a running
    simulation.

    Args:
      settle: least number of C steps of the odd worlds; twice as many where they do not lead to a contact.
        They are skipped where C reports a bad state on the way.
      scale: multiplies every random displacement, velocity and force.
    """
    rng = np.random.default_rng(seed)
    return [_perturbed_state(mjm, rng, world, settle, scale) for world in range(nworld)]


def _perturbed_state(
    mjm: mujoco.MjModel, rng: np.random.Generator, world: int, settle: int, scale: float
) -> mujoco.MjData:
    mjd = mujoco.MjData(mjm)
    if mjm.nkey:
        mujoco.mj_resetDataKeyframe(mjm, mjd, world % mjm.nkey)
    mujoco.mj_integratePos(mjm, mjd.qpos, scale * 0.2 * rng.standard_normal(mjm.nv), 1.0)
    mujoco.mj_normalizeQuat(mjm, mjd.qpos)
    mjd.qvel = scale * 0.5 * rng.standard_normal(mjm.nv)
    mjd.time = rng.uniform(0.0, 1.0)
    mjd.ctrl = _random_ctrl(mjm, rng)
    if world % 2:
        mjd = _settled(mjm, mjd, settle)
    mjd.qfrc_applied = scale * mjm.dof_M0 * rng.standard_normal(mjm.nv)
    mjd.xfrc_applied = scale * _wrench_sizes(mjm) * rng.standard_normal((mjm.nbody, 6))
    return mjd


def _wrench_sizes(mjm: mujoco.MjModel) -> np.ndarray:
    """Wrenches that accelerate a free body by one, (nbody, 6); a force on the world too, which moves nothing."""
    sizes = np.concatenate([np.repeat(mjm.body_mass[:, None], 3, axis=1), mjm.body_inertia], axis=1)
    sizes[0] = 1.0
    return sizes


def _random_ctrl(mjm: mujoco.MjModel, rng: np.random.Generator) -> np.ndarray:
    """Uniform in 1.2 times the control range, or in [-1.2, 1.2] without one, (nu,)."""
    limited = mjm.actuator_ctrllimited.astype(bool)[:, None]
    low, high = np.where(limited, mjm.actuator_ctrlrange, np.array([[-1.0, 1.0]])).T
    return (low + high) / 2 + 1.2 * (high - low) / 2 * rng.uniform(-1.0, 1.0, mjm.nu)


def _settled(mjm: mujoco.MjModel, start: mujoco.MjData, nstep: int) -> mujoco.MjData:
    """The state after `nstep` C steps and at most as many more until there is a contact.

    Returns `start` where C warned on the way: it resets a bad state.
    """
    mjd = copy_state(mjm, start)
    mjd.ctrl *= 0.2
    for i in range(2 * nstep):
        if i >= nstep and mjd.ncon:
            break
        mujoco.mj_step(mjm, mjd)
    if any(warning.number for warning in mjd.warning):
        return start
    mjd.ctrl = start.ctrl
    return copy_state(mjm, mjd)


# ------------------------------------------------------------------------------------------- C's values


def expected(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> dict[str, np.ndarray]:
    """Returns C's value of every field in `FIELDS`, in the shapes of `Data` without the world axis.

    Matrices are 3x3; M, qLD, actuator_moment and efc_J are dense: (nv, nv), (nv, nv), (nu, nv), (nefc, nv).
    qLD is our Cholesky factor of C's M (C keeps L'DL), zero while M is. Only what C lists is there: ncon
    contacts, nefc rows. Nothing is computed: fields are what the last C function left in `mjd`. Arrays are
    copies.
    """
    return {name: _reference(mjm, mjd, name) for name in FIELDS}


def _reference(mjm: mujoco.MjModel, mjd: mujoco.MjData, name: str) -> np.ndarray:
    if name in _DENSE:
        return _DENSE[name](mjm, mjd)
    if name.startswith("contact."):
        return _contact_field(mjd, name.removeprefix("contact."))
    value = np.array(getattr(mjd, name))
    return value.reshape(-1, 3, 3) if name in _MATRIX_FIELDS else value


def _contact_field(mjd: mujoco.MjData, name: str) -> np.ndarray:
    value = np.array(getattr(mjd.contact, name))
    return value.reshape(-1, 3, 3) if name == "frame" else value


def _dense_mass(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> np.ndarray:
    dense = np.zeros((mjm.nv, mjm.nv))
    mujoco.mj_fullM(mjm, mjd, dense)
    return dense


def _cholesky_mass(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> np.ndarray:
    mass = _dense_mass(mjm, mjd)
    return np.linalg.cholesky(mass) if mass.any() else mass


def _dense_moment(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> np.ndarray:
    dense = np.zeros((mjm.nout, mjm.nv))
    if dense.size:
        mujoco.mju_sparse2dense(
            dense, mjd.actuator_moment, mjd.moment_rownnz, mjd.moment_rowadr, mjd.moment_colind
        )
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
    "M": _dense_mass,
    "qLD": _cholesky_mass,
    "actuator_moment": _dense_moment,
    "efc_J": _dense_jacobian,
}


# ------------------------------------------------------------------------------------------- comparison


@dataclasses.dataclass(frozen=True)
class FieldError:
    """The worst entry of one field.

    Attributes:
      field: name, ``contact.`` in front of a contact's.
      error: error relative to the field's scale; infinite where shapes or integers differ or ours is not
        finite.
      rtol: the error allowed.
      world: index of the world of the worst entry.
      index: index of the entry inside that world's field.
      ours: value of the entry.
      reference: C's value of it.
    """

    field: str
    error: float
    rtol: float
    world: int = 0
    index: tuple[int, ...] = ()
    ours: float | str = 0.0
    reference: float | str = 0.0

    @property
    def ok(self) -> bool:
        """True if the error is within the tolerance."""
        return self.error <= self.rtol

    def __str__(self) -> str:
        verdict = f"{'ok  ' if self.ok else 'FAIL'} {self.field:<24} {self.error:9.2e} (<= {self.rtol:.0e})"
        return f"{verdict}  world {self.world} {list(self.index)}: {self.ours} / C {self.reference}"


@dataclasses.dataclass(frozen=True)
class Report:
    """Worst relative error per field, in the order compared."""

    errors: tuple[FieldError, ...]
    title: str = ""

    @property
    def ok(self) -> bool:
        """True if every field is within its tolerance."""
        return all(error.ok for error in self.errors)

    @property
    def failures(self) -> tuple[FieldError, ...]:
        """The fields out of tolerance."""
        return tuple(error for error in self.errors if not error.ok)

    @property
    def worst(self) -> float:
        """Largest relative error of all fields, 0 where none was compared."""
        return max((error.error for error in self.errors), default=0.0)

    def __getitem__(self, field: str) -> FieldError:
        return next(error for error in self.errors if error.field == field)

    def __str__(self) -> str:
        return "\n".join([self.title or "parity with MuJoCo C", *map(str, self.errors)])

    def raise_for_failures(self) -> None:
        """Raises AssertionError that lists every field out of tolerance, in pipeline order."""
        if not self.ok:
            raise AssertionError(str(dataclasses.replace(self, errors=self.failures)))


def compare(
    m: mjt.Model,
    d: mjt.Data,
    mjds: mujoco.MjData | Sequence[mujoco.MjData],
    fields: Iterable[str] = FIELDS,
    rtol: float | Mapping[str, float] | None = None,
) -> Report:
    """Compares `d` with one MjData per world.

    Args:
      m: our model.
      d: our data, batch size (nworld,), or () with a single MjData.
      mjds: C's data of the worlds, as left by the C function to compare with.
      fields: names to compare, of `FIELDS`.
      rtol: one tolerance, a table of them by field, or None for the module's SMOOTH, GEOMETRY and SOLVED.
        A field the table lacks takes the module's.

    Raises:
      ValueError: the number of worlds differs.
      AttributeError: an unknown field.
    """
    single = isinstance(mjds, mujoco.MjData)
    references = [mjds] if single else list(mjds)
    batch = () if single else (len(references),)
    if tuple(d.batch_size) != batch:
        raise ValueError(f"data has batch size {tuple(d.batch_size)}, the MjData given make {batch}")
    errors = []
    for name in fields:
        ours = _worlds_of(m, d, name, single)
        theirs = [_reference(reference.model, reference, name) for reference in references]
        errors.append(_field_error(name, ours, theirs, _tolerance(name, rtol)))
    return Report(tuple(errors))


def _worlds_of(m: mjt.Model, d: mjt.Data, name: str, single: bool) -> list[np.ndarray]:
    """Our value of a field for every world; of rows and contacts only the active ones."""

    def worlds(x: torch.Tensor) -> list[np.ndarray]:
        x = x.detach().cpu()
        return list((x.unsqueeze(0) if single else x).numpy())

    if name.startswith("contact."):
        active = [np.isfinite(dist) for dist in worlds(d.contact.dist)]
        name = name.removeprefix("contact.")
        slots = (
            [_static_slots(m, name)] * len(active) if name in _STATIC else worlds(getattr(d.contact, name))
        )
        return [slot[mask] for slot, mask in zip(slots, active, strict=True)]
    values = worlds(mjt.efc_jacobian(m, d) if name == "efc_J" else getattr(d, name))
    if name.startswith("efc_"):
        values = [value[mass > 0] for value, mass in zip(values, worlds(d.efc_D), strict=True)]
    return values


#: What of a contact does not change with the state: the model's name for it, its shape per slot.
_STATIC: dict[str, tuple[str, tuple[int, ...]]] = {
    "geom": ("contact_geom", (2,)),
    "dim": ("contact_dim", ()),
    "includemargin": ("contact_margin", ()),
    "friction": ("contact_friction", (5,)),
}


def _static_slots(m: mjt.Model, name: str) -> np.ndarray:
    attribute, shape = _STATIC[name]
    value = getattr(m, attribute)
    if isinstance(value, torch.Tensor):
        value = value[..., 0].detach().cpu().numpy().T
    return np.reshape(value, (m.nconmax, *shape))


def _tolerance(name: str, rtol: float | Mapping[str, float] | None) -> float:
    if isinstance(rtol, (int, float)):
        return float(rtol)
    if rtol is not None and name in rtol:
        return rtol[name]
    if name in _SOLVED_FIELDS:
        return SOLVED
    return GEOMETRY if name.startswith(("contact.", "efc_")) else SMOOTH


def _field_error(
    name: str, ours: Sequence[np.ndarray], references: Sequence[np.ndarray], rtol: float
) -> FieldError:
    for world, (mine, reference) in enumerate(zip(ours, references, strict=True)):
        if mine.shape != reference.shape:
            shapes = f"shape {mine.shape}", f"shape {reference.shape}"
            return FieldError(name, float("inf"), rtol, world, (), *shapes)
    if not sum(reference.size for reference in references):
        return FieldError(name, 0.0, rtol)
    scale = _scale(name, references)
    worst = FieldError(name, -1.0, rtol)
    for world, (mine, reference) in enumerate(zip(ours, references, strict=True)):
        if reference.size:
            worst = max(worst, _worst_entry(name, world, mine, reference, scale, rtol), key=lambda e: e.error)
    return worst


def _scale(name: str, references: Sequence[np.ndarray]) -> np.ndarray | float | None:
    """Scale of a field, per component if it has several; None for entry-wise and integer fields."""
    if name in ENTRYWISE or not np.issubdtype(references[0].dtype, np.floating):
        return None
    magnitudes = [np.abs(reference) for reference in references if reference.size]
    whole = max(magnitude.max() for magnitude in magnitudes)
    if references[0].ndim < 2:
        return max(whole, SCALE_FLOOR)
    component = np.max(
        [magnitude.reshape(-1, magnitude.shape[-1]).max(axis=0) for magnitude in magnitudes], axis=0
    )
    return np.maximum(component, max(COMPONENT_FLOOR * whole, SCALE_FLOOR))


def _worst_entry(
    name: str,
    world: int,
    ours: np.ndarray,
    reference: np.ndarray,
    scale: np.ndarray | float | None,
    rtol: float,
) -> FieldError:
    if np.issubdtype(reference.dtype, np.floating):
        divisor = np.maximum(np.abs(reference), np.finfo(float).tiny) if scale is None else scale
        error = np.abs(ours.astype(np.float64) - reference) / divisor
        error = np.where(np.isfinite(error), error, np.inf)
    else:
        error = np.where(ours == reference, 0.0, np.inf)
    index = np.unravel_index(np.argmax(error), error.shape)
    place = tuple(int(i) for i in index)
    return FieldError(
        name, float(error[index]), rtol, world, place, ours[index].item(), reference[index].item()
    )


# ----------------------------------------------------------------------------------------------- stages

CFunction = Callable[[mujoco.MjModel, mujoco.MjData], None]


@dataclasses.dataclass(frozen=True)
class Stage:
    """One public stage function and the C functions it must equal.

    Attributes:
      name: our function.
      prior: C functions that compute the stage's inputs from a state, in order.
      run: C functions that do the stage's work.
      fields: what the stage writes.
      rtol: tolerance of all of them, or None for the module's tolerance of each field.
      solves: the stage runs the constraint solver, so it is compared on a `converged` model.
    """

    name: str
    prior: tuple[CFunction, ...]
    run: tuple[CFunction, ...]
    fields: tuple[str, ...]
    rtol: float | None = SMOOTH
    solves: bool = False


def _rne(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> None:
    mujoco.mj_rne(mjm, mjd, 0, mjd.qfrc_bias)


def _rungekutta4(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> None:
    mujoco.mj_RungeKutta(mjm, mjd, 4)


_COM = (mujoco.mj_kinematics, mujoco.mj_comPos)
_POSITION = (mujoco.mj_fwdPosition,)
_COM_VELOCITY = (*_POSITION, mujoco.mj_comVel)
_VELOCITY = (*_POSITION, mujoco.mj_fwdVelocity)
_ACTUATION = (*_VELOCITY, mujoco.mj_fwdActuation)
_ACCELERATION = (*_ACTUATION, mujoco.mj_fwdAcceleration)
_MAKE_CONSTRAINT = (mujoco.mj_makeConstraint, mujoco.mj_referenceConstraint)

#: Every public stage, in pipeline order, by name.
STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage("kinematics", (), (mujoco.mj_kinematics,), POSE_FIELDS),
        Stage("com_pos", (mujoco.mj_kinematics,), (mujoco.mj_comPos,), COM_FIELDS),
        Stage("camlight", _COM, (mujoco.mj_camlight,), CAMERA_FIELDS),
        Stage("crb", _COM, (mujoco.mj_makeM,), INERTIA_FIELDS),
        Stage("factor_m", (*_COM, mujoco.mj_makeM), (mujoco.mj_factorM,), ("qLD",)),
        Stage("collision", _COM, (mujoco.mj_collision,), CONTACT_FIELDS, GEOMETRY),
        Stage("transmission", _COM, (mujoco.mj_transmission,), TRANSMISSION_FIELDS),
        Stage("fwd_position", (), _POSITION, POSITION_FIELDS, None),
        Stage("com_vel", _POSITION, (mujoco.mj_comVel,), COM_VELOCITY_FIELDS),
        Stage("passive", _COM_VELOCITY, (mujoco.mj_passive,), PASSIVE_FIELDS),
        Stage("rne", _COM_VELOCITY, (_rne,), ("qfrc_bias",)),
        Stage(
            "make_constraint", (*_COM, mujoco.mj_comVel, mujoco.mj_collision), _MAKE_CONSTRAINT, ROW_FIELDS
        ),
        Stage("fwd_velocity", _POSITION, (mujoco.mj_fwdVelocity,), VELOCITY_FIELDS),
        Stage("fwd_actuation", _VELOCITY, (mujoco.mj_fwdActuation,), ACTUATION_FIELDS),
        Stage("fwd_acceleration", _ACTUATION, (mujoco.mj_fwdAcceleration,), ACCELERATION_FIELDS),
        Stage("solve", _ACCELERATION, (mujoco.mj_fwdConstraint,), SOLVE_FIELDS, SOLVED, solves=True),
        Stage("forward", (), (mujoco.mj_forward,), FIELDS, None, solves=True),
        Stage("euler", (mujoco.mj_forward,), (mujoco.mj_Euler,), STATE_FIELDS),
        Stage("rungekutta4", (mujoco.mj_forward,), (_rungekutta4,), STATE_FIELDS, SOLVED, solves=True),
        Stage("step", (), (mujoco.mj_step,), STATE_FIELDS, SOLVED, solves=True),
    )
}


def stage_parity(
    mjm: mujoco.MjModel,
    stage: str | Stage,
    states: Sequence[mujoco.MjData],
    *,
    device: torch.device | str | None = None,
) -> Report:
    """Runs one stage of ours and of C on the same inputs, float64, all states as one batch.

    The inputs are what C's preceding stages compute from the states, carried over by `put_data`, so an
    error is this stage's own. Everything the stage writes is absent (as after a reset) from its input.

    Raises:
      KeyError: no such stage.
    """
    stage = STAGES[stage] if isinstance(stage, str) else stage
    mjm = converged(mjm) if stage.solves else mjm
    mjds = [_run(mjm, copy_state(mjm, state), stage.prior) for state in states]
    m = mjt.put_model(mjm, device=device, dtype=torch.float64)
    d = getattr(mjt, stage.name)(m, mjt.put_data(m, mjds))
    for mjd in mjds:
        _run(mjm, mjd, stage.run)
    report = compare(m, d, mjds, stage.fields, stage.rtol)
    return dataclasses.replace(report, title=f"{stage.name}: parity with MuJoCo C, {len(mjds)} worlds")


def _run(mjm: mujoco.MjModel, mjd: mujoco.MjData, functions: Iterable[CFunction]) -> mujoco.MjData:
    for function in functions:
        function(mjm, mjd)
    return mjd


# ---------------------------------------------------------------------------------------------- float32

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
    fields = {
        name: _worlds_of(m, d, name, single=False) for name in (*FLOAT32_TOLERANCES, *_THRESHOLD_FIELDS)
    }
    errors = [FieldError(name, 0.0, 1.0) for name in FLOAT32_TOLERANCES]
    contact_error = FieldError("ncon", 0.0, 0.0)
    for world, mjd in enumerate(references):
        ours = {name: values[world].astype(np.float64) for name, values in fields.items()}
        theirs = {name: _reference(mjm, mjd, name) for name in _THRESHOLD_FIELDS}
        contact_error = max(contact_error, _pair_count_error(world, ours, theirs), key=lambda e: e.error)
        grazing = bool(_grazing(ours).any() or _grazing(theirs).any())
        found = _float32_errors(mjm, mjd, ours, world, grazing)
        errors = [max(pair, key=lambda e: e.error) for pair in zip(errors, found, strict=True)]
    title = f"forward in float32: {len(references)} worlds, errors in tolerances"
    return Report((*errors, contact_error), title)


def _rounded(mjm: mujoco.MjModel, state: mujoco.MjData) -> mujoco.MjData:
    """A new MjData with `state` rounded to float32."""
    values = np.empty(mujoco.mj_stateSize(mjm, _INTEGRATION))
    mujoco.mj_getState(mjm, state, values, _INTEGRATION)
    new = mujoco.MjData(mjm)
    mujoco.mj_setState(mjm, new, values.astype(np.float32).astype(np.float64), _INTEGRATION)
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
        reference = _reference(mjm, source, name)
        if not reference.size or (grazing and name in _SOLVED_FIELDS):
            errors.append(FieldError(name, 0.0, 1.0))
            continue
        divisor = atol + rtol * np.abs(reference) + bounds.get(name, 0.0)
        errors.append(_worst_entry(name, world, ours[name], reference, divisor, 1.0))
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
    """What rounding of length and velocity does to the forces of stiff affine actuators: (nu,) and (nv,).

    The force is a difference of terms like kp * ctrl and kp * length, each rounded to its own size.
    """
    if not mjm.nu:
        return {}
    low, high = mjm.actuator_ctrlrange.T
    ctrl = np.where(mjm.actuator_ctrllimited, np.clip(mjd.ctrl, low, high), mjd.ctrl)
    inputs = np.stack([np.ones(mjm.nu), np.abs(mjd.actuator_length), np.abs(mjd.actuator_velocity)])
    affine_gain = mjm.actuator_gaintype == mujoco.mjtGain.mjGAIN_AFFINE
    affine_bias = mjm.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE
    gain = np.abs(mjm.actuator_gainprm[:, :3].T) * inputs
    gain = np.where(affine_gain, gain.sum(axis=0), gain[0])
    bias = np.where(affine_bias, (np.abs(mjm.actuator_biasprm[:, :3].T) * inputs).sum(axis=0), 0.0)
    force = _ROUNDING * (gain * np.abs(ctrl) + bias)
    return {"actuator_force": force, "qfrc_actuator": np.abs(_dense_moment(mjm, mjd)).T @ force}


def _inertia_bounds(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> dict[str, np.ndarray]:
    """What rounding does to M, and through its inverse to the accelerations: (nv, nv), (nv,), (nv,).

    An entry of M is a sum of parallel-axis terms that may be far larger than it (`_inertia_magnitude`);
    an error e of M and of the force f changes the solution x of M x = f by at most |M^-1| (e |x| + |error
    of f|).
    """
    magnitude = _inertia_magnitude(mjm, mjd)
    inverse = np.abs(np.linalg.inv(_dense_mass(mjm, mjd)))

    def solution_bound(x: np.ndarray, force: np.ndarray) -> np.ndarray:
        return _ROUNDING * (inverse @ (magnitude @ np.abs(x) + force))

    smooth = np.abs(mjd.qfrc_smooth)
    return {
        "M": _ROUNDING * magnitude,
        "qacc_smooth": solution_bound(mjd.qacc_smooth, smooth),
        "qacc": solution_bound(mjd.qacc, smooth + np.abs(mjd.qfrc_constraint)),
    }


def _inertia_magnitude(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> np.ndarray:
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


# --------------------------------------------------------------------------------------------- rollouts


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Distance from C's trajectory, step by step.

    Attributes:
      ours: distance of our state from C's after each step, (nstep, nworld).
      shadow: the same of the worst C simulation whose state was perturbed after each step, (nstep, nworld).
      perturbation: relative size of that perturbation.
    """

    ours: np.ndarray
    shadow: np.ndarray
    perturbation: float

    def horizon(self, amplification: float = 1e4) -> int:
        """Steps until chaos, when a world's shadow is more than `amplification` perturbations away."""
        far = (self.shadow > amplification * self.perturbation).any(axis=1)
        return int(np.argmax(far)) if far.any() else len(self.shadow)

    def ratio(self, nstep: int | None = None) -> float:
        """Our largest distance within `nstep` steps, relative to the shadow's largest up to the same step."""
        reached = np.maximum.accumulate(np.maximum(self.shadow, self.perturbation), axis=0)
        return float((self.ours / reached)[:nstep].max(initial=0.0))


def rollout_parity(
    mjm: mujoco.MjModel,
    states: Sequence[mujoco.MjData],
    nstep: int,
    *,
    perturbation: float = 1e-12,
    nshadow: int = 2,
    seed: int = 0,
    step: Callable[[mjt.Model, mjt.Data], mjt.Data] | None = None,
    device: torch.device | str | None = None,
) -> Rollout:
    """Simulates all states with C, with perturbed C, and with ours, float64, the same random controls.

    Contact dynamics is chaotic: two right simulations that differ in the last bit part sooner or later.
    The shadows say when: they are C simulations whose positions and velocities receive a relative random
    error of `perturbation` after *every* step, since our rounding differs from C's in every step too (an
    error of the first step alone would die out in a robot that comes to rest). Applied forces of the
    states are kept, controls are redrawn every ten steps.

    Args:
      step: replaces `mujoco_torch.step`, e.g. with its compiled form.
    """
    rng = np.random.default_rng(seed)
    controls = np.stack([[_random_ctrl(mjm, rng) for _ in states] for _ in range(-(-nstep // 10))])
    trajectories = [_c_trajectory(mjm, state, controls[:, w], nstep) for w, state in enumerate(states)]
    shadow = np.zeros((nstep, len(states)))
    for world, (state, trajectory) in enumerate(zip(states, trajectories, strict=True)):
        for _ in range(nshadow):
            other = _c_trajectory(mjm, state, controls[:, world], nstep, perturbation, rng)
            shadow[:, world] = np.maximum(shadow[:, world], _distance(mjm, trajectory, other))
    our_trajectories = _our_trajectories(mjm, states, controls, nstep, step or mjt.step, device)
    ours = np.stack(
        [_distance(mjm, c, o) for c, o in zip(trajectories, our_trajectories, strict=True)], axis=1
    )
    return Rollout(ours, shadow, perturbation)


Trajectory = tuple[np.ndarray, np.ndarray]


def _c_trajectory(
    mjm: mujoco.MjModel,
    state: mujoco.MjData,
    controls: np.ndarray,
    nstep: int,
    perturbation: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Trajectory:
    """Positions (nstep, nq) and velocities (nstep, nv) after each C step."""
    mjd = copy_state(mjm, state)
    qpos, qvel = np.empty((nstep, mjm.nq)), np.empty((nstep, mjm.nv))
    for i in range(nstep):
        mjd.ctrl = controls[i // 10]
        mujoco.mj_step(mjm, mjd)
        if rng is not None:
            mujoco.mj_integratePos(mjm, mjd.qpos, perturbation * rng.uniform(-1.0, 1.0, mjm.nv), 1.0)
            mjd.qvel += perturbation * rng.uniform(-1.0, 1.0, mjm.nv) * (1.0 + np.abs(mjd.qvel))
        qpos[i], qvel[i] = mjd.qpos, mjd.qvel
    return qpos, qvel


def _our_trajectories(
    mjm: mujoco.MjModel,
    states: Sequence[mujoco.MjData],
    controls: np.ndarray,
    nstep: int,
    step: Callable[[mjt.Model, mjt.Data], mjt.Data],
    device: torch.device | str | None,
) -> list[Trajectory]:
    m = mjt.put_model(mjm, device=device, dtype=torch.float64)
    d = mjt.put_data(m, [copy_state(mjm, state) for state in states])
    qpos, qvel = [], []
    with torch.no_grad():
        for i in range(nstep):
            if i % 10 == 0:
                d = d.replace(ctrl=torch.as_tensor(controls[i // 10], device=d.ctrl.device))
            d = step(m, d)
            qpos.append(d.qpos.cpu().numpy())
            qvel.append(d.qvel.cpu().numpy())
    return list(zip(np.stack(qpos, axis=1), np.stack(qvel, axis=1), strict=True))


def _distance(mjm: mujoco.MjModel, reference: Trajectory, other: Trajectory) -> np.ndarray:
    """Largest difference of position (tangent space) and of velocity relative to 1 + |velocity|, (nstep,)."""
    difference = np.zeros(mjm.nv)
    distance = np.empty(len(reference[0]))
    for i, (qpos, qvel, other_qpos, other_qvel) in enumerate(zip(*reference, *other, strict=True)):
        mujoco.mj_differentiatePos(mjm, difference, 1.0, qpos, other_qpos)
        speed = np.abs(qvel - other_qvel) / (1.0 + np.abs(qvel).max(initial=0.0))
        distance[i] = max(np.abs(difference).max(initial=0.0), speed.max(initial=0.0))
    return np.where(np.isfinite(distance), distance, np.inf)
