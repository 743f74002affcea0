"""Elliptic cones: the vectors p of penalty.py, their cost, and its second derivative.

A cone takes a slot for each axis. Its rows are scaled by the friction along their axis, so that their residuals are
z = (N, U). Numbers are (ROWS, W) where blocks of cones are worked on, (W,) where one is.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from .rows import ROWS, first_slot
from .tiles import floor_at, global_at

CONE = tl.constexpr(8)
"""Numbers of a cone: c, mu, and of a line search N, its rate, |U|^2, U . rate, |rate|^2, and |p|^2 at the start."""


class Zone(NamedTuple):
    """Where z is: sticking or slipping; slip = (N - mu |U|) / (1 + mu^2); one over |U|, or 1 where that is zero."""

    bottom: tl.tensor
    middle: tl.tensor
    slip: tl.tensor
    inverse: tl.tensor


@triton.jit
def _zone(normal, square, mu):
    """The zone of z = (N, U), of N and |U|^2."""
    slide = tl.sqrt(square)
    top = mu * slide <= normal
    bottom = ~top & (mu * normal + slide <= 0)
    slip = (normal - mu * slide) / (1 + mu * mu)
    return Zone(bottom, ~(top | bottom), slip, 1 / tl.where(slide > 0, slide, 1.0))


@triton.jit
def _by_zone(zone, middle, bottom):
    """What holds where a contact slips, sticks, or is open."""
    return tl.where(zone.middle, middle, tl.where(zone.bottom, bottom, 0.0))


@triton.jit
def _share(zone, mu):
    """The U of p, of that of z."""
    return _by_zone(zone, -mu * zone.slip * zone.inverse, 1.0)


@triton.jit
def _length(zone, normal, square, mu):
    """|p|^2."""
    return _by_zone(zone, zone.slip * zone.slip * (1 + mu * mu), normal * normal + square)


# ---- places


@triton.jit
def _number_at(first, k: tl.constexpr, W: tl.constexpr):
    """Offsets (ROWS, W) of a number of the cones from `first` on."""
    return ((first + tl.arange(0, ROWS))[:, None] * CONE + k) * W + tl.arange(0, W)[None, :]


@triton.jit
def _load_axis(rows, source, first, axis, W: tl.constexpr):
    """Values (ROWS, W) along an axis of the cones from `first` on, zero beyond the last."""
    cone = first + tl.arange(0, ROWS)[:, None]
    at = (first_slot(rows, cone) + axis) * W + tl.arange(0, W)[None, :]
    return tl.load(source + at, mask=cone < rows.cones, other=0)


@triton.jit
def _load_jac(rows, first, axis, N: tl.constexpr, W: tl.constexpr):
    """J (ROWS, N, W) along an axis of the cones from `first` on, zero beyond the last."""
    cone = first + tl.arange(0, ROWS)[:, None, None]
    slot, dof = first_slot(rows, cone) + axis, tl.arange(0, N)[None, :, None]
    at = (slot * N + dof) * W + tl.arange(0, W)[None, None, :]
    return tl.load(rows.jac + at, mask=cone < rows.cones, other=0)


@triton.jit
def _inner(rows, x, y, first, W: tl.constexpr):
    """U . V (ROWS, W) of values (N, U) and (M, V)."""
    total = tl.zeros((ROWS, W), x.dtype.element_ty)
    for axis in range(1, rows.axes):
        total += _load_axis(rows, x, first, axis, W) * _load_axis(rows, y, first, axis, W)
    return total


# ---- what cones cost


@triton.jit
def make_cones(s, f, rows, cones, world, worlds):
    """Write c = D / mu^2 and mu of all cones in use."""
    W: tl.constexpr = world.shape[0]
    for first in range(0, rows.cones, ROWS):
        cone = first + tl.arange(0, ROWS)[:, None]
        used = cone < cones[None, :]
        row = tl.load(rows.row + first_slot(rows, cone) * W + tl.arange(0, W)[None, :], mask=used, other=0)
        contact = tl.load(s.row_constraint + row, mask=used, other=s.given) - s.given
        weight = tl.load(f.contact_weight + global_at(contact, world[None, :], worlds), mask=used, other=0)
        mu = tl.load(f.friction + contact, mask=used, other=1)
        tl.store(rows.cone + _number_at(first, 0, W), weight / (mu * mu))
        tl.store(rows.cone + _number_at(first, 1, W), mu)
    tl.debug_barrier()


@triton.jit
def pull_cones(rows, N: tl.constexpr, W: tl.constexpr):
    """J' c p (N, W)."""
    total = tl.zeros((N, W), rows.jac.dtype.element_ty)
    for first in range(0, rows.cones, ROWS):
        weight, mu = (
            tl.load(rows.cone + _number_at(first, 0, W)),
            tl.load(rows.cone + _number_at(first, 1, W)),
        )
        normal = _load_axis(rows, rows.residual, first, 0, W)
        zone = _zone(normal, _inner(rows, rows.residual, rows.residual, first, W), mu)
        force = weight * _by_zone(zone, zone.slip, normal)
        total += tl.sum(_load_jac(rows, first, 0, N, W) * force[:, None, :], 0)
        share = weight * _share(zone, mu)
        for axis in range(1, rows.axes):
            force = share * _load_axis(rows, rows.residual, first, axis, W)
            total += tl.sum(_load_jac(rows, first, axis, N, W) * force[:, None, :], 0)
    return total


@triton.jit
def squares_of_cones(rows, residual, W: tl.constexpr):
    """The sum of c |p|^2 (W,) at residuals."""
    total = tl.zeros((W,), rows.jac.dtype.element_ty)
    for first in range(0, rows.cones, ROWS):
        weight, mu = (
            tl.load(rows.cone + _number_at(first, 0, W)),
            tl.load(rows.cone + _number_at(first, 1, W)),
        )
        normal, square = _load_axis(rows, residual, first, 0, W), _inner(rows, residual, residual, first, W)
        total += tl.sum(weight * _length(_zone(normal, square, mu), normal, square, mu), 0)
    return total


@triton.jit
def add_bending(rows, a):
    """A + J' S J (N, N, W), with S the second derivative of cones: a row along the cone's side, and rows across it."""
    N: tl.constexpr = a.shape[0]
    W: tl.constexpr = a.shape[2]
    for cone in range(rows.cones):
        number = rows.cone + cone * CONE * W + tl.arange(0, W)
        weight, mu = tl.load(number), tl.load(number + W)
        residual = rows.residual + first_slot(rows, cone) * W + tl.arange(0, W)
        jac = (
            rows.jac + (first_slot(rows, cone) * N + tl.arange(0, N)[:, None]) * W + tl.arange(0, W)[None, :]
        )
        square = tl.zeros_like(mu)
        for axis in range(1, rows.axes):
            side = tl.load(residual + axis * W)
            square += side * side
        zone = _zone(tl.load(residual), square, mu)
        turned = tl.where(zone.middle, zone.inverse, 0.0)
        along = tl.zeros((N, W), a.dtype)
        for axis in range(1, rows.axes):
            along += (turned * tl.load(residual + axis * W))[None, :] * tl.load(jac + axis * N * W)
        bent = tl.load(jac) - mu[None, :] * along
        a = _add_square(a, weight * _by_zone(zone, 1 / (1 + mu * mu), 1.0), bent)
        share = weight * _share(zone, mu)
        for axis in range(1, rows.axes):
            unit = turned * tl.load(residual + axis * W)
            a = _add_square(a, share, tl.load(jac + axis * N * W) - unit[None, :] * along)
    return a


@triton.jit
def _add_square(a, weight, row):
    """A + w x x', of w (W,) and x (N, W)."""
    scaled = weight[None, :] * row
    return a + scaled[:, None, :] * row[None, :, :]


# ---- the line search


@triton.jit
def prepare_cones(rows, W: tl.constexpr):
    """Write what the cost of each cone along a line is made of."""
    for first in range(0, rows.cones, ROWS):
        normal = _load_axis(rows, rows.residual, first, 0, W)
        square = _inner(rows, rows.residual, rows.residual, first, W)
        mu = tl.load(rows.cone + _number_at(first, 1, W))
        tl.store(rows.cone + _number_at(first, 2, W), normal)
        tl.store(rows.cone + _number_at(first, 3, W), _load_axis(rows, rows.rate, first, 0, W))
        tl.store(rows.cone + _number_at(first, 4, W), square)
        tl.store(rows.cone + _number_at(first, 5, W), _inner(rows, rows.residual, rows.rate, first, W))
        tl.store(rows.cone + _number_at(first, 6, W), _inner(rows, rows.rate, rows.rate, first, W))
        length = _length(_zone(normal, square, mu), normal, square, mu)
        tl.store(rows.cone + _number_at(first, 7, W), length)
    tl.debug_barrier()


@triton.jit
def evaluate_cones(rows, alpha):
    """The cost of cones above the start's, its slope and curvature (W,) after a step."""
    W: tl.constexpr = alpha.shape[0]
    cost, slope, curvature = tl.zeros_like(alpha), tl.zeros_like(alpha), tl.zeros_like(alpha)
    for first in range(0, rows.cones, ROWS):
        weight, mu = (
            tl.load(rows.cone + _number_at(first, 0, W)),
            tl.load(rows.cone + _number_at(first, 1, W)),
        )
        lift, inner = (
            tl.load(rows.cone + _number_at(first, 3, W)),
            tl.load(rows.cone + _number_at(first, 5, W)),
        )
        speed = tl.load(rows.cone + _number_at(first, 6, W))
        normal = tl.load(rows.cone + _number_at(first, 2, W)) + alpha[None, :] * lift
        along = inner + alpha[None, :] * speed
        square = tl.load(rows.cone + _number_at(first, 4, W)) + alpha[None, :] * (inner + along)
        square = floor_at(square, 0.0)
        zone = _zone(normal, square, mu)
        start = tl.load(rows.cone + _number_at(first, 7, W))
        cost += 0.5 * tl.sum(weight * (_length(zone, normal, square, mu) - start), 0)

        turning = along * zone.inverse
        side = lift - mu * turning
        slope += tl.sum(weight * _by_zone(zone, zone.slip * side, normal * lift + along), 0)
        across = floor_at(speed - turning * turning, 0.0)
        bent = side * side / (1 + mu * mu) - mu * zone.slip * across * zone.inverse
        curvature += tl.sum(weight * _by_zone(zone, bent, lift * lift + speed), 0)
    return cost, slope, curvature
