"""Rows of the constraint problem: joint limits, then contacts (``mj_makeConstraint``)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mujoco_torch._src.components import Components, join
from mujoco_torch._src.kinematics import joint_quats
from mujoco_torch._src.solver import jacobian
from mujoco_torch._src.spatial import MINVAL, cross, dot, norm, normalize, quat_to_rotation_vector
from mujoco_torch._src.stage import public
from mujoco_torch._src.types import InsideData, InsideModel


class Factors(NamedTuple):
    """The Jacobian of all rows, in the factored form that the solve takes (see ``solver.jacobian``)."""

    wrench: Tensor  # [side, 6, nrow of contacts, B]
    limit_axis: Tensor  # [3, nl, B]


class Rows(NamedTuple):
    """Values of constraint rows ``[nrow, B]``; a row is inactive in a world where ``D`` is zero."""

    pos: Tensor
    D: Tensor
    vel: Tensor
    aref: Tensor


@public(
    reads=("qpos", "qvel", "cdof", "cvel", "subtree_com", "contact_dist", "contact_pos", "contact_frame"),
    writes=("nefc", "efc_pos", "efc_D", "efc_vel", "efc_aref"),
)
def make_constraint(m: InsideModel, d: InsideData) -> InsideData:
    """Position, velocity, mass and reference of every constraint row, in C's order (``mj_makeConstraint``).

    It includes ``mj_referenceConstraint``, so velocities must be up to date.
    Source: MuJoCo documentation, "Computation", sections "Constraint model" and "Constraint model: parameters".

    Departures from C:
      1. Rows have static slots in C's order; an inactive slot has ``efc_D = 0``.
      2. ``efc_J`` is not made: ``solve`` takes it in factored form. ``efc_jacobian(m, d)`` makes it on request.

    Raises:
      StateError: the contacts or velocities of ``d`` do not fit the model.
    """
    factors = factor_rows(m, d)
    parts = []
    if m.nl:
        parts.append(_limit_rows(m, d, factors.limit_axis))
    if m.nconmax:
        parts.append(_contact_rows(m, d, factors.wrench))
    if not parts:
        parts.append(Rows(*(d.qpos.new_zeros((0, d.qpos.shape[-1])) for _ in Rows._fields)))
    rows = Rows(*(torch.cat(field) if len(field) > 1 else field[0] for field in zip(*parts, strict=True)))
    nefc = (rows.D > 0).sum(0, dtype=torch.int32)
    return d.replace(
        nefc=nefc, efc_pos=rows.pos, efc_D=rows.D, efc_vel=rows.vel, efc_aref=rows.aref, factors=factors
    )


def factor_rows(m: InsideModel, d: InsideData) -> Factors:
    """Wrenches of the contact rows and axes of the limit rows, from positions."""
    worlds = d.qpos.shape[-1]
    if m.nconmax:
        wrench = torch.stack([_row_wrenches(m, d, root) for root in m.contact_root.unbind(0)])
    else:
        wrench = d.qpos.new_zeros((1, 6, 0, worlds))
    axis = m.limit_axis.expand(-1, -1, worlds)
    if m.ball_limit:
        axis = axis - m.limit_ball @ normalize(quat_to_rotation_vector(joint_quats(m, d.qpos)))[0]
    return Factors(wrench, axis)


def row_jacobian(m: InsideModel, d: InsideData) -> Tensor:
    """Dense Jacobian ``[njmax, nv, B]`` of all rows (``efc_J``)."""
    wrench, axis = factor_rows(m, d)
    return jacobian(d.cdof, wrench, m.contact_moved, axis, list(m.limit_dof), list(m.limit_size))


def _limit_rows(m: InsideModel, d: InsideData, axis: Tensor) -> Rows:
    """Limits of hinges, slides (two sides each) and balls (``mj_instantiateLimit``)."""
    dist = m.limit_qpos @ d.qpos + m.limit_offset
    if m.ball_limit:
        dist = dist - m.limit_ball @ norm(quat_to_rotation_vector(joint_quats(m, d.qpos)))
    vel = dot(axis, (m.limit_qvel @ d.qvel).unflatten(0, (3, m.nl)))
    active = dist < m.limit_margin
    mass, reference = _impedance(m, "limit", torch.where(active, dist, m.limit_margin), active)
    return Rows(dist, mass, vel, reference - m.limit_damping * vel)


def _contact_rows(m: InsideModel, d: InsideData, wrench: Tensor) -> Rows:
    """Contacts: a frictionless row, or the edges of a pyramid (``mj_instantiateContact``).

    A row is a wrench: its force along the contact axes, moved to the centre of mass of a tree. Its Jacobian is the
    inner product with the motion axes of that tree's dofs, its velocity that with the velocities of the two bodies.
    """
    active = d.contact_dist < m.contact_threshold
    dist = torch.where(active, d.contact_dist, m.contact_margin)
    mass, reference = _impedance(m, "contact", dist, active)
    velocities = (m.contact_velocity @ d.cvel[:, None]).unbind(1)
    dist, mass, reference, damping, *moving = _per_row(
        m, join((dist, mass, reference, m.contact_damping), *velocities).stack()
    )
    vel = dot(wrench.flatten(0, 1), Components(moving))
    return Rows(dist, mass, vel, reference - damping * vel)


def _row_wrenches(m: InsideModel, d: InsideData, root: Tensor) -> Tensor:
    """Wrench ``[6, nrow, B]`` (torque, force) of every contact row about the centre of mass of the given tree."""
    offset = d.contact_pos - root @ d.subtree_com

    def axis(k: int) -> Components:
        """Unit wrench along axis k: force along the normal and the two tangents, then torque about them."""
        direction = d.contact_frame[3 * (k % 3) : 3 * (k % 3) + 3]
        if k < 3:
            return join(cross(offset, direction), direction)
        return join(direction, torch.zeros_like(direction))

    count = max(m.contact_dim)
    axes = join(*map(axis, range(count))).stack().unflatten(0, (count, 6))
    return _by_runs(
        m, lambda at, edges, rows: _edges(axes[:, :, at, None], m.row_edge[:, rows].unflatten(1, (-1, edges)))
    )


def _edges(axes: Tensor, weight: Tensor) -> Tensor:
    """Rows ``[6, ncon, edge, B]``: the normal, plus for an edge of the pyramid +-friction along one more axis."""
    total = axes[0].expand(-1, -1, weight.shape[2], -1)
    for k in range(1, len(axes)):
        total = total + weight[k] * axes[k]
    return total


def _per_row(m: InsideModel, x: Tensor) -> Tensor:
    """Values ``[k, ncon, B]`` of contacts, repeated for each of their rows, ``[k, nrow, B]``."""
    return _by_runs(m, lambda at, edges, rows: x[:, at, None].expand(-1, -1, edges, -1))


def _by_runs(m: InsideModel, part: Callable[[slice, int, slice], Tensor]) -> Tensor:
    """Rows ``[k, nrow, B]`` of all contacts, from ``[k, ncon, edge, B]`` of each run of contacts of one condim."""
    parts, row = [], 0
    for dim, start, end in m.dim_runs:
        edges = max(1, 2 * (dim - 1))
        rows = slice(row, row + edges * (end - start))
        parts.append(part(slice(start, end), edges, rows).flatten(1, 2))
        row = rows.stop
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def _impedance(m: InsideModel, name: str, pos: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """Constraint mass D (0 where inactive) and the position part of the reference, ``-k imp (pos - margin)``.

    Source: MuJoCo documentation, "Computation", "Constraint model: parameters"; ``mj_makeImpedance``.
    """

    def get(what: str) -> Tensor:
        return getattr(m, f"{name}_{what}")

    violation = pos - get("margin")
    x = (violation.abs() * get("invwidth")).clamp(max=1.0)
    rise = get("rise") * x ** get("power")
    fall = 1.0 - get("fall") * (1.0 - x) ** get("power")
    y = torch.where(get("power") == 1.0, x, torch.where(x <= get("mid"), rise, fall))
    imp = get("imp0") + y * get("imprange")
    resistance = ((1.0 - imp) / imp * get("invweight")).clamp(min=MINVAL)
    return torch.where(active, 1.0 / resistance, 0.0), -get("stiffness") * imp * violation
