"""Forward dynamics and the step (``mj_forward``, ``mj_step``)."""

import torch

from mujoco_torch._src import callbacks, solver
from mujoco_torch._src.actuation import fwd_actuation
from mujoco_torch._src.bias import rne
from mujoco_torch._src.com import com_pos, com_vel
from mujoco_torch._src.constraint import (
    ROW_INPUTS,
    make_constraint,
    make_constraints,
    row_motion,
)
from mujoco_torch._src.contact import collision
from mujoco_torch._src.energy import energies
from mujoco_torch._src.inertia import crb, factor_m, solve_m
from mujoco_torch._src.kinematics import camlight, kinematics
from mujoco_torch._src.layout import FIELDS, STATE, names
from mujoco_torch._src.passive import passive
from mujoco_torch._src.stage import public
from mujoco_torch._src.support import xfrc_accumulate_inside
from mujoco_torch._src.tendon import tendon, tendon_bias
from mujoco_torch._src.transmission import moments, transmission
from mujoco_torch._src.types import InsideData, InsideModel

INPUTS = tuple(STATE)
POSITION = names(
    "xpos xquat xmat xipos ximat xanchor xaxis geom_xpos geom_xmat site_xpos site_xmat cam_xpos cam_xmat light_xpos "
    "light_xdir subtree_com cdof cinert ten_J ten_length actuator_length actuator_moment crb M qLD "
    "qLDiagInv ncon contact_dist contact_pos contact_frame"
)
VELOCITY = names(
    "ten_velocity actuator_velocity cvel cdof_dot qfrc_bias qfrc_spring qfrc_damper qfrc_gravcomp qfrc_fluid "
    "qfrc_adhesion qfrc_passive nefc efc_pos efc_D efc_vel efc_aref"
)


@public(reads=("qpos", "mocap_pos", "mocap_quat"), writes=POSITION)
def fwd_position(m: InsideModel, d: InsideData) -> InsideData:
    """All that depends on position only (``mj_fwdPosition``).

    Departures from C:
      1. Constraint rows are made in ``fwd_velocity``, since a row's reference needs its velocity.

    Raises:
      StateError: ``qpos`` does not fit the model.
    """
    d = kinematics.inside(m, d)
    d = com_pos.inside(m, d)
    d = camlight.inside(m, d)
    d = tendon.inside(m, d)
    d = crb.inside(m, d)
    d = factor_m.inside(m, d)
    d = collision.inside(m, d)
    return transmission.inside(m, d)


@public(reads=("qpos", "qvel", "plastic", "eq_active", *POSITION), writes=VELOCITY)
def fwd_velocity(m: InsideModel, d: InsideData) -> InsideData:
    """All that depends on velocity, and the constraint rows (``mj_fwdVelocity``).

    Raises:
      StateError: the state does not fit the model.
    """
    d = d.replace(ten_velocity=(d.ten_J * d.qvel).sum(1))
    actuator_velocity = m.moment_row.T @ (moments(m, d) * (m.moment_col @ d.qvel))
    d = d.replace(actuator_velocity=actuator_velocity if m.actuation else torch.zeros_like(actuator_velocity))
    d = com_vel.inside(m, d)
    d = passive.inside(m, d)
    d = callbacks.passive(m, d)
    d = rne.inside(m, d)
    if m.tendon_bias:
        d = d.replace(qfrc_bias=d.qfrc_bias + tendon_bias(m, d))
    return make_constraint.inside(m, d)


@public(
    reads=names(
        "qfrc_applied xfrc_applied xipos subtree_com cdof M qLD qLDiagInv qfrc_passive qfrc_bias qfrc_actuator"
    ),
    writes=("qfrc_smooth", "qacc_smooth"),
)
def fwd_acceleration(m: InsideModel, d: InsideData) -> InsideData:
    """Sum of all forces but those of constraints, and the acceleration they give (``mj_fwdAcceleration``).

    Raises:
      StateError: the forces of ``d`` do not fit the model.
    """
    qfrc_smooth = (
        d.qfrc_passive - d.qfrc_bias + d.qfrc_applied + d.qfrc_actuator + xfrc_accumulate_inside(m, d)
    )
    d = d.replace(qfrc_smooth=qfrc_smooth)
    return d.replace(qacc_smooth=solve_m(m, d, qfrc_smooth))


@public(
    reads=(*ROW_INPUTS, *names("qacc_warmstart M qfrc_smooth qacc_smooth efc_D efc_aref")),
    writes=("qacc", "qfrc_constraint", "efc_force", "solver_niter"),
)
def solve(m: InsideModel, d: InsideData) -> InsideData:
    """Constraint forces and acceleration, with the no-slip pass where it is asked for (``mj_fwdConstraint``).

    Source: MuJoCo documentation, "Computation", sections "Solver" and "Algorithms".

    Raises:
      StateError: the rows of ``d`` do not fit the model.
    """
    return _solve(m, d.replace(constraints=make_constraints(m, d)))


def _solve(m: InsideModel, d: InsideData) -> InsideData:
    """``solve`` with the constraints at hand."""
    if not m.njmax:
        return d.replace(
            qacc=d.qacc_smooth.clone(),
            qfrc_constraint=torch.zeros_like(d.qacc_smooth),
            efc_force=torch.zeros_like(d.efc_D),
            solver_niter=d.qacc_smooth.new_zeros(d.qacc_smooth.shape[-1], dtype=torch.int32),
        )
    rows = d.constraints
    problem = (
        d.M, d.cdof, d.subtree_com, d.contact_pos, d.contact_frame, m.row_edge, rows.given_jac, rows.given.D,
        rows.given.reference, rows.contact.D, rows.contact_reference(m), m.row_scale, m.cone_friction, m.row_damping,
        m.frictionloss, d.qvel,
    )  # fmt: skip
    warmstart = d.qacc_warmstart if m.warmstart else d.qacc_smooth
    qacc, qfrc_constraint, niter = solver.solve(m.system, *problem, d.qfrc_smooth, d.qacc_smooth, warmstart)
    if m.noslip_iterations:
        qacc, qfrc_constraint, efc_force, sweeps = solver.noslip(m.system, *problem, d.qacc_smooth, qacc)
        niter = niter + sweeps
    else:
        residual = row_motion(m, d, m.body_dof @ (d.cdof * qacc), qacc) - d.efc_aref
        efc_force = solver.row_force(m.system, d.efc_D, residual, m.frictionloss, m.cone_friction)
    return d.replace(qacc=qacc, qfrc_constraint=qfrc_constraint, efc_force=efc_force, solver_niter=niter)


@public(reads=INPUTS, writes=tuple(name for name in FIELDS if name not in STATE))
def forward(m: InsideModel, d: InsideData) -> InsideData:
    """Forward dynamics: everything but the advance of the state (``mj_forward``).

    Departures from C:
      1. What a control callback sets is used, and not kept in the ``ctrl`` and applied forces of the result.

    Raises:
      StateError: the state does not fit the model.
    """
    d = fwd_position.inside(m, d)
    d = fwd_velocity.inside(m, d)
    d = energies(m, d)
    return fwd_rest(m, callbacks.control(m, d))


def fwd_rest(m: InsideModel, d: InsideData) -> InsideData:
    """What depends on controls and applied forces: everything that ``forward`` does after velocity."""
    d = fwd_actuation.inside(m, d)
    d = fwd_acceleration.inside(m, d)
    d = _solve(m, d)
    # By ``inverse``, or by a step that compares the two.
    return d.replace(qfrc_inverse=torch.zeros_like(d.qvel), solver_fwdinv=torch.zeros_like(d.energy))
