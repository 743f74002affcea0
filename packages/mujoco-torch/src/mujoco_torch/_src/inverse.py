"""Inverse dynamics (``mj_inverse``)."""

import torch
from torch import Tensor

from mujoco_torch._src import solver
from mujoco_torch._src.bias import newton_euler
from mujoco_torch._src.constraint import row_jacobian
from mujoco_torch._src.derivative import mul_implicit, mul_implicitfast
from mujoco_torch._src.energy import energies
from mujoco_torch._src.enums import IntegratorType
from mujoco_torch._src.errors import StateError
from mujoco_torch._src.forward import INPUTS, POSITION, VELOCITY, fwd_position, fwd_velocity
from mujoco_torch._src.inertia import mul_m, solve_m
from mujoco_torch._src.layout import names
from mujoco_torch._src.passive import damping_rate
from mujoco_torch._src.spatial import MINVAL
from mujoco_torch._src.stage import inside, public
from mujoco_torch._src.support import xfrc_accumulate_inside
from mujoco_torch._src.types import Data, InsideData, InsideModel, Model


@public(
    reads=(*INPUTS, *names("qacc act_dot actuator_force qfrc_actuator")),
    writes=(*POSITION, *VELOCITY, *names("energy efc_force qfrc_constraint qfrc_inverse")),
)
def inverse(m: InsideModel, d: InsideData) -> InsideData:
    """Force ``qfrc_inverse`` that, applied, gives the acceleration ``qacc`` (``mj_inverse``).

    Equal to ``qfrc_applied + qfrc_actuator + J' xfrc_applied`` of a forward dynamics that has converged. Constraint
    forces follow from the acceleration without a solve. With the enable flag ``invdiscrete`` the acceleration is that
    of discrete time, ``(qvel of the next step - qvel) / timestep``; actuator forces are read, as in C, where the
    integrator is implicit in them.
    Source: MuJoCo documentation, "Computation", section "Inverse dynamics".

    Raises:
      StateError: the state or ``qacc`` does not fit the model, or ``invdiscrete`` is set and the integrator is RK4,
        which has no discrete-time inverse.
    """
    d = fwd_position.inside(m, d)
    d = fwd_velocity.inside(m, d)
    return inverse_skip(m, energies(m, d))


def inverse_skip(m: InsideModel, d: InsideData) -> InsideData:
    """What depends on acceleration, position and velocity being done (``mj_inverseSkip``)."""
    qacc = discrete_acc(m, d) if m.invdiscrete else d.qacc
    d = inv_constraint(m, d, qacc)
    force = d.qfrc_bias + mul_m(m, d, qacc) - d.qfrc_passive - d.qfrc_constraint
    return d.replace(qfrc_inverse=force)


def inv_constraint(m: InsideModel, d: InsideData, qacc: Tensor) -> InsideData:
    """Constraint forces from the acceleration (``mj_invConstraint``)."""
    if not m.njmax:
        return d.replace(efc_force=torch.zeros_like(d.efc_D), qfrc_constraint=torch.zeros_like(qacc))
    jacobian = row_jacobian(m, d)
    residual = (jacobian * qacc).sum(1) - d.efc_aref
    force = solver.row_force(m.system, d.efc_D, residual, m.frictionloss, m.cone_friction)
    return d.replace(efc_force=force, qfrc_constraint=(jacobian * force.unsqueeze(1)).sum(0))


def discrete_acc(m: InsideModel, d: InsideData) -> Tensor:
    """Continuous-time acceleration of a discrete-time one, ``M^-1 (M - h D) qacc`` (``mj_discreteAcc``).

    D is what the integrator is implicit in: derivatives of the dampers (Euler), or of all smooth forces.
    """
    if m.integrator == IntegratorType.RK4:
        raise StateError(
            "no discrete-time inverse dynamics for the integrator rk4; use another, or disable the flag invdiscrete"
        )
    if m.integrator == IntegratorType.EULER:
        if not m.eulerdamp:
            return d.qacc
        return solve_m(m, d, mul_m(m, d, d.qacc) + m.timestep * damping_rate(m, d.qvel) * d.qacc)
    if not m.nv:
        return d.qacc
    multiply = mul_implicit if m.integrator == IntegratorType.IMPLICIT else mul_implicitfast
    return solve_m(m, d, multiply(m, d, d.qacc))


def compare_fwd_inv(m: InsideModel, d: InsideData) -> InsideData:
    """Forward against inverse dynamics, where the model asks for it (``mj_compareFwdInv``).

    ``solver_fwdinv``: norms of the differences of constraint force and of applied force, both 0 without constraint
    rows. ``qfrc_inverse`` is kept, too; all else stays as forward dynamics left it.
    """
    if not m.fwdinv:
        return d
    done = inverse_skip(m, d)
    applied = d.qfrc_applied + d.qfrc_actuator + xfrc_accumulate_inside(m, d)
    apart = torch.stack((_size(d.qfrc_constraint - done.qfrc_constraint), _size(applied - done.qfrc_inverse)))
    return d.replace(
        solver_fwdinv=torch.where(d.nefc > 0, apart, 0.0),
        qfrc_inverse=torch.where(d.nefc > 0, done.qfrc_inverse, 0.0),
    )


def _size(x: Tensor) -> Tensor:
    """Length of joint-space vectors ``[nv, B]``; its gradient at zero is zero."""
    square = (x * x).sum(0)
    nonzero = square > MINVAL * MINVAL
    return torch.where(nonzero, torch.where(nonzero, square, 1.0).sqrt(), 0.0)


def rne_acc(m: Model, d: Data) -> Tensor:
    """Force [N, Nm] of the acceleration and velocity of all bodies, ``(nworld, nv)`` (``mj_rne`` with ``flg_acc = 1``).

    ``M qacc + qfrc_bias`` but for armature, which belongs to no body.

    Raises:
      StateError: the velocities or the acceleration of ``d`` do not fit the model.
    """
    m_inside, d_inside = inside(m, d, ("qvel", "qacc", "cdof", "cdof_dot", "cvel", "cinert"))
    force = newton_euler(m_inside, d_inside, d_inside.qacc).movedim(-1, 0)
    return force if d.batch_size else force[0]
