"""Equality constraints: residuals, Jacobians and their rates (``mj_instantiateEquality``, ``mj_Jdotv``).

Source: MuJoCo documentation, "Computation", sections "Constraint model: equality" and "Dual problem" (J-dot v);
"Modeling", section "Equality". A connect holds two anchors together: ``r = p1 - p2``. A weld also holds their frames:
``r = s vec(q)`` with the torque scale s and the relative turn ``q = q2^-1 q1``. A coupling makes a joint or tendon a
polynomial of another.

All connects and welds are computed together, a connect as a weld of torque scale 0, and all couplings together: the
work in the graph does not grow with their number.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mujoco_torch._src.components import Components, join
from mujoco_torch._src.spatial import cross, dot, norm, quat_mul, rotate
from mujoco_torch._src.types import InsideData, InsideModel


class Anchors(NamedTuple):
    """The two anchors of every connect and weld."""

    offset: Components
    """``[3, 2 n, B]``: positions from the centre of mass of their trees; first sides, then second ones"""
    apart: Components
    """``[3, n, B]``: first position minus second"""
    back: Components | None
    """``[4, n, B]``: inverse of the second frame; None without a weld"""
    turn: Components | None
    """``[4, n, B]``: first frame as seen from the second; None without a weld"""


class Equalities(NamedTuple):
    """Values of the equality rows ``[ne, B]``."""

    pos: Tensor
    """residual"""
    size: Tensor
    """what the impedance is a function of: the length of the whole residual of a connect or weld"""
    jac: Tensor
    """values of J, ``[values, B]``, but for what never changes and for the first tendon of a coupling"""
    bias: Tensor | None
    """J-dot v; None without connects and welds"""


def equalities(m: InsideModel, d: InsideData) -> Equalities:
    """Residuals, Jacobian values and J-dot v of every equality row, active or not."""
    pos: Any = None
    size: Any = None
    jac = bias = None
    if m.nanchored:
        a = _anchors(m, d)
        residual = _residual(m, a)
        pos = m.anchored_row @ _flat(residual)
        size = m.anchored_size @ norm(residual)
        jac = m.link_value @ _flat(_link_values(m, d, a))
        bias = m.anchored_row @ _flat(_bias(m, d, a))
    if m.ncoupled:
        values, slope = _couplings(m, d)
        residual = m.coupled_row @ values
        pos, size = _plus(pos, residual), _plus(size, residual)
        if m.has_slope:
            jac = _plus(jac, -(m.slope_value @ slope) * _second(m, d))
    return Equalities(pos, size, d.qpos.new_zeros((1, 1)) if jac is None else jac, bias)


def _plus(x: Tensor | None, y: Tensor) -> Tensor:
    return y if x is None else x + y


def _flat(x: Components) -> Tensor:
    """Components ``[k, n, B]`` one after the other, ``[k n, B]``."""
    return x.stack().flatten(0, 1)


def _anchors(m: InsideModel, d: InsideData) -> Anchors:
    n = m.nanchored
    body = m.anchor_body @ torch.cat((d.xpos, d.xquat))
    pos = body[:3] + rotate(body[3:], m.anchor_pos)
    offset = pos - m.anchor_root @ d.subtree_com
    apart = pos[:, :n] - pos[:, n:]
    if not m.welds:
        return Anchors(offset, apart, None, None)
    quat = quat_mul(body[3:], m.anchor_quat)
    back = join((quat[0][n:],), -quat[1:, n:])
    return Anchors(offset, apart, back, quat_mul(back, quat[:, :n]))


def _residual(m: InsideModel, a: Anchors) -> Components:
    """Residual ``[3 or 6, n, B]`` of connects and welds."""
    return a.apart if a.turn is None else join(a.apart, m.anchor_torque * a.turn[1:])


def _turned(back: Components, turn: Components, half_torque: Tensor, axis: Components) -> Components:
    """Rate ``s/2 vec(q2^-1 w q1)`` of the orientation residual for a relative angular velocity w, world frame."""
    w = rotate(back, axis)
    return half_torque * (turn[0] * w + cross(w, turn[1:]))


def _link_values(m: InsideModel, d: InsideData, a: Anchors) -> Components:
    """Rate ``[3 or 6, links, B]`` of the residual for unit velocity of each dof that moves an anchor.

    Of a dof that moves both anchors the translations cancel, and the difference of the arms remains.
    """
    axis = m.link_dof @ d.cdof
    turn, move = Components(axis[:3]), Components(axis[3:])
    slide = m.link_sign * move + cross(turn, Components(m.link_arm @ a.offset))
    if a.turn is None or a.back is None:
        return slide
    frames = m.link_anchored @ join(a.back, a.turn, (m.anchor_torque.expand_as(a.turn[0]),))
    back, relative, torque = Components(frames[:4]), Components(frames[4:8]), frames[8]
    return join(slide, _turned(back, relative, 0.5 * torque, m.link_sign * turn))


def _bias(m: InsideModel, d: InsideData, a: Anchors) -> Components:
    """J-dot v ``[3 or 6, n, B]``: how the rate of the residual changes while no dof accelerates.

    With the acceleration (alpha, lin) of a body about the tree's centre, that of a point is
    ``lin + alpha x r + w x v``; of a weld ``s/2 vec(q2^-1 (alpha1 - alpha2 + w1 x w2 - |w1 - w2|^2 / 2) q1)``.
    """
    n = m.nanchored
    acceleration = m.body_dof @ (d.cdof_dot * d.qvel)
    moving = m.anchor_body @ torch.cat((d.cvel, acceleration))
    w, move, alpha, lin = (Components(moving[k : k + 3]) for k in (0, 3, 6, 9))
    point = lin + cross(alpha, a.offset) + cross(w, move + cross(w, a.offset))
    slide = point[:, :n] - point[:, n:]
    if a.turn is None or a.back is None:
        return slide
    w1, w2 = w[:, :n], w[:, n:]
    spin = w1 - w2
    half_torque = 0.5 * m.anchor_torque
    change = _turned(a.back, a.turn, half_torque, alpha[:, :n] - alpha[:, n:] + cross(w1, w2))
    return join(slide, change - (0.5 * half_torque * dot(spin, spin)) * a.turn[1:])


def _couplings(m: InsideModel, d: InsideData) -> tuple[Tensor, Tensor]:
    """Residual ``x - c0 - P(y)`` and slope ``P'(y)`` of the couplings ``[n, B]``; x and y from their references."""
    n = m.ncoupled
    values = -m.coupled_reference
    if m.coupled_joints:
        values = values + m.coupled_qpos @ d.qpos
    if m.coupled_tendons:
        values = values + m.coupled_length @ d.ten_length
    x, y = values[:n], values[n:]
    c0, c1, c2, c3, c4 = m.coupled_coefficients
    residual = x - c0 - y * (c1 + y * (c2 + y * (c3 + y * c4)))
    return residual, c1 + y * (2.0 * c2 + y * (3.0 * c3 + y * (4.0 * c4)))


def _second(m: InsideModel, d: InsideData) -> Tensor:
    """Rate of the second scalar of the couplings by dof, ``[values, B]`` in the places of the rows' Jacobian."""
    if not m.coupled_tendons:
        return m.second_value
    return m.second_value + m.second_tendon @ d.ten_J.flatten(0, 1)
