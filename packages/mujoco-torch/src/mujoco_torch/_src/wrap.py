"""Paths of tendons around and through spheres and cylinders (``mju_wrap``).

Everything happens in a plane: for a sphere the one through its centre and both ends, for a cylinder the one across its
axis, where it is a circle; a cylinder has no end. All wraps of a model and both branches are computed, and selected
by where. What a branch cannot do with its input (a point in the circle) it does with a harmless input instead, so
that no gradient of what is not selected is infinite.

Source: MuJoCo documentation, "XML Reference", element "spatial/geom"; the geometry of tangents to a circle.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mujoco_torch._src.components import Components, join, where
from mujoco_torch._src.spatial import MINVAL, Stacked, cross, dot, norm, normalize, safe_norm
from mujoco_torch._src.types import InsideData, InsideModel

NEWTON_ITERATIONS = 19  # C gives up at its twentieth
NEWTON_TOLERANCE = 1e-6  # [rad], as in C: further iterations would give another path than C's

FULL_TURN = 2.0 * math.pi
SMALL_ARC = 1e-6  # [rad]: where both contact points coincide, rounding must not make an arc a full turn


class _Path(NamedTuple):
    """In the plane of the circle: whether there is contact, length on the circle, first and last point on it."""

    wraps: Tensor
    arc: Tensor
    first: Components
    last: Components


def wrap(
    m: InsideModel, d: InsideData, start: Tensor, stop: Tensor
) -> tuple[Tensor, Tensor, Stacked, Stacked]:
    """Where and how long tendons touch the obstacles between two points.

    Args:
      start, stop: ends [m], world frame, ``[3, nwrap, B]``.

    Returns:
      Whether the tendon touches, the length on the obstacle [m], both ``[nwrap, B]``; first and last point of contact
      [m], world frame, ``[3, nwrap, B]``. Without contact the length and the points have no meaning.

    Departures from C:
      1. Where both ways around have one length but for rounding, as with ends in line with the centre of a sphere,
         the path may be the other one.
    """
    position, matrix = m.wrap_geom @ d.geom_xpos, m.wrap_geom @ d.geom_xmat
    local0, local1 = _to_local(matrix, start - position), _to_local(matrix, stop - position)
    axes = _plane(m, local0, local1)
    end0, end1 = _project(axes, local0), _project(axes, local1)
    path = _path(m, axes, end0, end1, _to_local(matrix, m.wrap_side @ d.site_xpos - position))
    apart = safe_norm(local0)[1] & safe_norm(local1)[1]
    arc, first, last = path.arc, _lift(axes, path.first), _lift(axes, path.last)
    if m.wrap_cylinders:
        arc, first, last = _climb(m, path, (local0, local1), (end0, end1), first, last)
    return (
        path.wraps & apart,
        arc,
        position + _to_world(matrix, first),
        position + _to_world(matrix, last),
    )


def _path(m: InsideModel, axes, end0: Components, end1: Components, side: Components) -> _Path:
    """The path of each wrap, by the place of its side site: through the circle if that is inside the geom."""
    if not m.wrap_sides:
        return _around(m, end0, end1, None)
    marker = normalize(_project(axes, side))[0]
    if not m.wrap_through:
        return _around(m, end0, end1, marker)
    through = _through(m, end0, end1)
    if not m.wrap_around:
        return through
    around = _around(m, end0, end1, marker)
    inside = (norm(side) < m.wrap_radius) & (m.wrap_sided > 0)
    return _Path(
        torch.where(inside, through.wraps, around.wraps),
        torch.where(inside, through.arc, around.arc),
        where(inside, through.first, around.first),
        where(inside, through.last, around.last),
    )


# Frames.


def _to_local(matrix: Tensor, v: Stacked) -> Components:
    return Components(dot(matrix[k::3], v) for k in range(3))


def _to_world(matrix: Tensor, v: Stacked) -> Components:
    return Components(dot(matrix[3 * k : 3 * k + 3], v) for k in range(3))


def _plane(m: InsideModel, p: Components, q: Components) -> tuple[Components, Components]:
    """Two unit axes of the plane of the circle, in the frame of the geom."""
    zero, one = torch.zeros_like(p[0]), torch.ones_like(p[0])
    x, y = Components((one, zero, zero)), Components((zero, one, zero))
    if not m.wrap_spheres:
        return x, y
    first = normalize(p)[0]
    normal = cross(p, q)
    # Ends in line with the centre: the plane is arbitrary, and the same as C's.
    normal = normalize(where(safe_norm(normal)[1], normal, cross(first, _aslant(first))))[0]
    second = normalize(cross(normal, first))[0]
    if m.wrap_cylinders:
        cylinder = m.wrap_cylinder > 0
        first, second = where(cylinder, x, first), where(cylinder, y, second)
    return first, second


def _aslant(v: Components) -> Components:
    """Ones but for the largest component, which is zero."""
    x, y, z = (part.abs() for part in v)
    largest_y, largest_z = (y > x) & (y > z), (z > x) & (z > y)
    other = largest_y | largest_z
    return Components(
        torch.where(largest, 0.0, torch.ones_like(x)) for largest in (~other, largest_y, largest_z)
    )


def _project(axes: tuple[Components, Components], v: Components) -> Components:
    return Components(dot(axis, v) for axis in axes)


def _lift(axes: tuple[Components, Components], v: Components) -> Components:
    return axes[0] * v[0] + axes[1] * v[1]


def _climb(m: InsideModel, path: _Path, local, ends, first: Components, last: Components):
    """On a cylinder the path is a helix and its tangents: height grows evenly with length in the plane."""
    before, after = norm(path.first - ends[0]), norm(ends[1] - path.last)
    total = before + path.arc + after
    slope = (local[1][2] - local[0][2]) / torch.where(total > MINVAL, total, 1.0)
    low, high = local[0][2] + slope * before, local[0][2] + slope * (before + path.arc)
    cylinder = m.wrap_cylinder > 0
    arc = torch.where(cylinder, norm(Components((path.arc, high - low))), path.arc)
    return (
        arc,
        join(first[:2], (torch.where(cylinder, low, first[2]),)),
        join(last[:2], (torch.where(cylinder, high, last[2]),)),
    )


# In the plane.


def _area(a: Components, b: Components) -> Tensor:
    """Cross product of two vectors of the plane."""
    return a[0] * b[1] - a[1] * b[0]


def _angle(a: Components, b: Components) -> Tensor:
    """Angle [rad] from one vector to another, counterclockwise, in (-pi, pi]; neither may be zero."""
    return torch.atan2(_area(a, b), dot(a, b))


def _nearest(a: Components, b: Components) -> Components:
    """The point of a segment that is nearest to the origin."""
    step = b - a
    square = dot(step, step)
    share = -dot(step, a) / torch.where(square < MINVAL, 1.0, square)
    return a + torch.clamp(share, 0.0, 1.0) * step


def _cross_each_other(a: Components, b: Components, c: Components, d: Components) -> Tensor:
    """Whether the segments from a to b and from c to d intersect, the last point of each left out as in C."""
    u, v = b - a, d - c
    det = _area(u, v)
    sign = torch.where(det > 0, 1.0, -1.0)
    on_first = (_area(a - c, v) * sign <= 0) & (_area(b - d, v) * sign > 0)
    on_second = (_area(a - c, u) * sign <= 0) & (_area(b - d, u) * sign > 0)
    return (det.abs() >= MINVAL) & on_first & on_second


def _harmless(
    m: InsideModel, valid: Tensor, end0: Components, end1: Components
) -> tuple[Components, Components]:
    """The ends, and where they are not valid two points apart from each other and from the circle."""
    far, zero = torch.full_like(end0[0], 2.0) * m.wrap_radius, torch.zeros_like(end0[0])
    return where(valid, end0, Components((far, zero))), where(valid, end1, Components((zero, far)))


def _around(m: InsideModel, end0: Components, end1: Components, side: Components | None) -> _Path:
    """Shortest path around the circle, the way the side site shows where there is one.

    The path from end to side site to end winds about the centre by some angle; the tendon is the shortest path that
    winds by the same (homotopic to it). Without a side site it is the shortest of all.
    """
    radius = m.wrap_radius
    step = end1 - end0
    outside = (dot(end0, end0) >= radius * radius) & (dot(end1, end1) >= radius * radius)
    valid = outside & (dot(step, step) >= MINVAL)
    end0, end1 = _harmless(m, valid, end0, end1)
    near = _nearest(end0, end1)
    free = dot(near, near) > radius * radius
    clockwise, counterclockwise = _tangents(radius, end0, end1, 1.0), _tangents(radius, end0, end1, -1.0)
    crossed = [_cross_each_other(end0, first, end1, last) for first, last in (clockwise, counterclockwise)]
    turn = _shorter(clockwise, counterclockwise, crossed)
    if side is not None:
        sided = m.wrap_sided > 0
        winding = _angle(end0, side) + _angle(side, end1)
        turn = torch.where(sided, winding > 0, turn)
        free = free & (~sided | ((winding - _angle(end0, end1)).abs() < math.pi))
    first, last = (where(turn, b, a) for a, b in zip(clockwise, counterclockwise, strict=True))
    arc = _arc(first, last, turn)
    if side is not None:
        arc = torch.where(sided, (winding - _angle(end0, first) - _angle(last, end1)).abs(), arc)
    wraps = valid & ~free & ~torch.where(turn, crossed[1], crossed[0])
    return _Path(wraps, radius * arc, first, last)


def _tangents(
    radius: Tensor, end0: Components, end1: Components, sign: float
) -> tuple[Components, Components]:
    """Contact points of the tangents from both ends, for a path clockwise (sign 1) or counterclockwise (-1)."""
    return _tangent(radius, end0, sign), _tangent(radius, end1, -sign)


def _tangent(radius: Tensor, end: Components, sign: float) -> Components:
    square = dot(end, end)
    beyond = square - radius * radius
    outside = beyond > 0
    root = torch.where(outside, torch.where(outside, beyond, 1.0).sqrt(), 0.0)
    across = sign * radius * Components((end[1], -end[0]))
    # In C's order: between two ways of one length, rounding decides.
    return (end * (radius * radius) + across * root) / square


def _shorter(clockwise, counterclockwise, crossed: list[Tensor]) -> Tensor:
    """Whether counterclockwise is the shorter way; one whose tangents cross each other is none."""
    distances = []
    for (first, last), bad in zip((clockwise, counterclockwise), crossed, strict=True):
        chord = first - last
        distances.append(torch.where(bad, torch.inf, dot(chord, chord)))
    return distances[1] <= distances[0]


def _arc(first: Components, last: Components, turn: Tensor) -> Tensor:
    """Angle [rad] from first to last contact point, counterclockwise where ``turn``, in [0, 2 pi)."""
    area = _area(first, last)
    angle = torch.atan2(area.abs(), dot(first, last))
    reverse = torch.where(turn, area < 0, area > 0) & (angle > SMALL_ARC)
    return torch.where(reverse, FULL_TURN - angle, angle)


def _through(m: InsideModel, end0: Components, end1: Components) -> _Path:
    """Path that passes through the circle: it touches in one point, where both parts make equal angles with it.

    That is the shortest way that touches, as of a ray of light reflected by the circle from outside.
    """
    radius = m.wrap_radius
    valid = (norm(end0) > radius) & (norm(end1) > radius) & (norm(_nearest(end0, end1)) > radius)
    end0, end1 = _harmless(m, valid, end0, end1)
    point = _reflection(radius, end0, end1)
    return _Path(valid, torch.zeros_like(point[0]), point, point)


def _reflection(radius: Tensor, end0: Components, end1: Components) -> Components:
    """The point of the circle; where Newton's method fails, the one half-way between the ends, as in C."""
    length0, length1 = norm(end0), norm(end1)
    cosine = dot(end0, end1) / (length0 * length1)
    apart = (cosine < 1.0) & (cosine <= 1.0 - MINVAL)
    ratio0, ratio1 = radius / length0, radius / length1
    incidence, found = _incidence(ratio0, ratio1, torch.where(apart, cosine, 0.0).acos())
    first = _area(end0, end1) > 0
    ratio = torch.where(first, ratio0, ratio1)
    turned = incidence - _asin(ratio * incidence.sin())
    from_end = normalize(where(first, end0, end1))[0]
    c, s = turned.cos(), turned.sin()
    point = Components((c * from_end[0] - s * from_end[1], s * from_end[0] + c * from_end[1]))
    return radius * where(apart & found, point, normalize(0.5 * (end0 + end1))[0])


def _incidence(ratio0: Tensor, ratio1: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """The angle of incidence [rad] by Newton's method, and whether it converged as C's does.

    With the ratios of the radius to both distances, and the angle between both ends: in the triangles of centre,
    contact point and end, sines are to each other as sides, so it is the root x of
    ``asin(ratio0 sin x) + asin(ratio1 sin x) - 2 x + angle``. That function falls and is concave, so the iteration
    goes from the right end straight to the root and needs none of the precautions against leaving it.
    The gradient is that of the root, not of the iterations.
    """
    numbers = ratio0.detach(), ratio1.detach(), angle.detach()
    x = torch.full_like(angle, 0.5 * math.pi).detach()
    value, rate = _mismatch(x, *numbers)
    possible = value <= 0
    for _ in range(NEWTON_ITERATIONS):
        x = torch.where(value.abs() > NEWTON_TOLERANCE, x - value / rate, x)
        value, rate = _mismatch(x, *numbers)
    found = possible & (value.abs() <= NEWTON_TOLERANCE)
    x = torch.where(found, x, 0.5)
    live, rate = _mismatch(x, ratio0, ratio1, angle)
    return x - (live - live.detach()) / rate.detach(), found


def _mismatch(x: Tensor, ratio0: Tensor, ratio1: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """The function whose root is the angle of incidence, and its derivative, which is negative."""
    s = x.sin()
    sine0, sine1 = ratio0 * s, ratio1 * s
    rate = x.cos() * (ratio0 / _cosine(sine0) + ratio1 / _cosine(sine1)) - 2.0
    return _asin(sine0) + _asin(sine1) - 2.0 * x + angle, torch.clamp(rate, max=-MINVAL)


def _cosine(sine: Tensor) -> Tensor:
    """Cosine, not quite zero, of an angle of at most a quarter turn."""
    return torch.clamp(1.0 - sine * sine, min=torch.finfo(sine.dtype).eps ** 2).sqrt()


def _asin(x: Tensor) -> Tensor:
    """Arcsine of numbers less than one, whose gradient stays finite where rounding makes them one."""
    return torch.asin(torch.clamp(x, max=1.0 - torch.finfo(x.dtype).eps))
