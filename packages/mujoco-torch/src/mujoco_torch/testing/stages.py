"""Each public stage against the C function of its name, on the same state."""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Sequence

import mujoco
import torch

import mujoco_torch as mjt
from mujoco_torch.testing.comparison import Report, compare
from mujoco_torch.testing.fields import (
    ACCELERATION_FIELDS,
    ACTUATION_FIELDS,
    CAMERA_FIELDS,
    COM_FIELDS,
    COM_VELOCITY_FIELDS,
    CONTACT_FIELDS,
    FIELDS,
    GEOMETRY,
    INERTIA_FIELDS,
    INVERSE_FIELDS,
    PASSIVE_FIELDS,
    POSE_FIELDS,
    POSITION_FIELDS,
    ROW_FIELDS,
    SMOOTH,
    SOLVE_FIELDS,
    SOLVED,
    STATE_FIELDS,
    TENDON_FIELDS,
    TRANSMISSION_FIELDS,
    VELOCITY_FIELDS,
)
from mujoco_torch.testing.states import converged, copy_state

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
      integrators: those the stage belongs to, all if empty; a model with another one is given the first.
    """

    name: str
    prior: tuple[CFunction, ...]
    run: tuple[CFunction, ...]
    fields: tuple[str, ...]
    rtol: float | None = SMOOTH
    solves: bool = False
    integrators: tuple[int, ...] = ()


def _rne(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> None:
    mujoco.mj_rne(mjm, mjd, 0, mjd.qfrc_bias)


def _rungekutta4(mjm: mujoco.MjModel, mjd: mujoco.MjData) -> None:
    mujoco.mj_RungeKutta(mjm, mjd, 4)


_BODIES = (mujoco.mj_kinematics, mujoco.mj_comPos)
_COM = (*_BODIES, mujoco.mj_tendon)
_ROWS = (*_COM, mujoco.mj_collision, mujoco.mj_makeConstraint)
_POSITION = (mujoco.mj_fwdPosition,)
_COM_VELOCITY = (*_POSITION, mujoco.mj_comVel)
_VELOCITY = (*_POSITION, mujoco.mj_fwdVelocity)
_ACTUATION = (*_VELOCITY, mujoco.mj_fwdActuation)
_ACCELERATION = (*_ACTUATION, mujoco.mj_fwdAcceleration)
_IMPLICIT = (int(mujoco.mjtIntegrator.mjINT_IMPLICIT), int(mujoco.mjtIntegrator.mjINT_IMPLICITFAST))
_MAKE_CONSTRAINT = (mujoco.mj_makeConstraint, mujoco.mj_referenceConstraint)

#: Every public stage, in pipeline order, by name.
STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage("kinematics", (), (mujoco.mj_kinematics,), POSE_FIELDS),
        Stage("com_pos", (mujoco.mj_kinematics,), (mujoco.mj_comPos,), COM_FIELDS),
        Stage("camlight", _COM, (mujoco.mj_camlight,), CAMERA_FIELDS),
        Stage("tendon", _BODIES, (mujoco.mj_tendon,), TENDON_FIELDS),
        Stage("crb", _COM, (mujoco.mj_makeM,), INERTIA_FIELDS),
        Stage("factor_m", (*_COM, mujoco.mj_makeM), (mujoco.mj_factorM,), ("qLD", "qLDiagInv")),
        Stage("collision", _COM, (mujoco.mj_collision,), CONTACT_FIELDS, GEOMETRY),
        Stage("transmission", _ROWS, (mujoco.mj_transmission,), TRANSMISSION_FIELDS),
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
        Stage("implicit", (mujoco.mj_forward,), (mujoco.mj_implicit,), STATE_FIELDS, integrators=_IMPLICIT),
        Stage("rungekutta4", (mujoco.mj_forward,), (_rungekutta4,), STATE_FIELDS, SOLVED, solves=True),
        Stage("step", (), (mujoco.mj_step,), STATE_FIELDS, SOLVED, solves=True),
        Stage("step1", (), (mujoco.mj_step1,), (*POSITION_FIELDS, *VELOCITY_FIELDS, "energy"), None),
        Stage("step2", (mujoco.mj_step1,), (mujoco.mj_step2,), STATE_FIELDS, SOLVED, solves=True),
        Stage("energy_pos", _POSITION, (mujoco.mj_energyPos,), ("energy",)),
        Stage("energy_vel", _POSITION, (mujoco.mj_energyVel,), ("energy",)),
        Stage("inverse", (mujoco.mj_forward,), (mujoco.mj_inverse,), INVERSE_FIELDS, SOLVED, solves=True),
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
    mjm = with_integrator(mjm, stage)
    mjds = [_run(mjm, copy_state(mjm, state), stage.prior) for state in states]
    m = mjt.put_model(mjm, device=device, dtype=torch.float64)
    d = getattr(mjt, stage.name)(m, mjt.put_data(m, mjds))
    for mjd in mjds:
        _run(mjm, mjd, stage.run)
    report = compare(m, d, mjds, stage.fields, stage.rtol)
    return dataclasses.replace(report, title=f"{stage.name}: parity with MuJoCo C, {len(mjds)} worlds")


def with_integrator(mjm: mujoco.MjModel, stage: Stage) -> mujoco.MjModel:
    """Returns `mjm`, or where the stage belongs to other integrators a copy with the first of them."""
    if not stage.integrators or mjm.opt.integrator in stage.integrators:
        return mjm
    mjm = copy.copy(mjm)
    mjm.opt.integrator = stage.integrators[0]
    return mjm


def _run(mjm: mujoco.MjModel, mjd: mujoco.MjData, functions: Iterable[CFunction]) -> mujoco.MjData:
    for function in functions:
        function(mjm, mjd)
    return mjd
