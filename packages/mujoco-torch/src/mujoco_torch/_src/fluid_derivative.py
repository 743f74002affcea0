"""How the forces of the surrounding medium change with velocity (``mjd_fluid``).

Matrices are lists of columns, each a vector ``[3, n, B]``. The formulas are the derivatives of those in ``fluid.py``.
"""

import torch
from torch import Tensor

from mujoco_torch._src.components import Components, join
from mujoco_torch._src.fluid import section, to_local, to_world
from mujoco_torch._src.spatial import Stacked, cross, normalize, safe_norm
from mujoco_torch._src.types import InsideData, InsideModel

Matrix = list[Components]
# Torque and force by the angular velocity, then torque and force by the linear one.
Rates = tuple[Matrix, Matrix, Matrix, Matrix]


def body_rates(m: InsideModel, d: InsideData, symmetric: bool) -> Tensor:
    """Derivative of the wrench on every body by its motion, both about the tree's centre of mass.

    ``[36, nbody, B]``, column by column; if ``symmetric``, the symmetric part of it, except for free bodies that carry
    no joint, which keep the whole.
    """
    total = torch.zeros_like(d.cvel[:1]).expand(36, -1, -1)
    if m.fluid_boxes:
        pos, mat = m.fluid_box_body @ d.xipos, m.fluid_box_body @ d.ximat
        total = total + _rates(m, d, "fluid_box", pos, mat, _box_rates, symmetric)
    if m.fluid_ellipsoids:
        pos, mat = m.fluid_geom @ d.geom_xpos, m.fluid_geom @ d.geom_xmat
        total = total + _rates(m, d, "fluid_geom", pos, mat, _ellipsoid_rates, symmetric)
    return total


def _rates(
    m: InsideModel, d: InsideData, name: str, pos: Tensor, mat: Tensor, model, symmetric: bool
) -> Tensor:
    body = getattr(m, f"{name}_body")
    offset = pos - getattr(m, f"{name}_root") @ d.subtree_com
    velocity = body @ d.cvel
    linear = velocity[3:] + cross(velocity[:3], offset) - m.wind
    local = model(m, to_local(mat, velocity[:3]), to_local(mat, linear))
    if symmetric and name == "fluid_geom":  # that of boxes is symmetric
        part = _symmetric_part(*local)
        local = _kept(m.lone_ellipsoid, local, part) if m.lone_skew else part
    columns = _at_center([_turned(mat, x) for x in local], offset)
    return body.T @ join(*columns).stack()


def _symmetric_part(tt: Matrix, ft: Matrix, tf: Matrix, ff: Matrix) -> Rates:
    below = _mean(ft, _transposed(tf))
    return _mean(tt, _transposed(tt)), below, _transposed(below), _mean(ff, _transposed(ff))


def _kept(mask: Tensor, whole: Rates, part: Rates) -> Rates:
    """The whole where the mask ``[n, 1]`` is 1, else a part of it."""
    tt, ft, tf, ff = (
        [x * mask + y * (1.0 - mask) for x, y in zip(a, b, strict=True)]
        for a, b in zip(whole, part, strict=True)
    )
    return tt, ft, tf, ff


def _at_center(rates: list[Matrix], offset: Stacked) -> list[Components]:
    """The six columns about the centre of the tree of what is given at an offset from it.

    The point moves with u - o x w, and its force has the moment o x f.
    """
    tt, ft, tf, ff = rates
    ft, tt = _minus(ft, _times_skew(ff, offset)), _minus(tt, _times_skew(tf, offset))
    turns = [join(t + cross(offset, f), f) for t, f in zip(tt, ft, strict=True)]
    slides = [join(t + cross(offset, f), f) for t, f in zip(tf, ff, strict=True)]
    return turns + slides


def _box_rates(m: InsideModel, w: Components, v: Components) -> Rates:
    zero = torch.zeros_like(w[0])
    none = [Components((zero, zero, zero))] * 3
    turn = [
        -(m.fluid_box_viscous_turn + 2.0 * f * x.abs()) for f, x in zip(m.fluid_box_drag_turn, w, strict=True)
    ]
    slide = [-(m.fluid_box_viscous + 2.0 * f * x.abs()) for f, x in zip(m.fluid_box_drag, v, strict=True)]
    return _diagonal(turn), none, none, _diagonal(slide)


def _ellipsoid_rates(m: InsideModel, w: Components, v: Components) -> Rates:
    momentum, spin = m.fluid_mass * v, m.fluid_inertia * w
    added_v = _times_diagonal(_skew(v), m.fluid_mass)  # the added mass moves with v ...
    added_w = _times_diagonal(_skew(w), m.fluid_mass)
    added_turn = _times_diagonal(_skew(w), m.fluid_inertia)  # ... and turns with w
    tt = _plus(_minus(_skew(spin), added_turn), _turn_drag_rate(m, w))
    ft = _minus(_skew(momentum), _scaled(_skew(v), m.fluid_magnus))
    tf = _minus(_skew(momentum), added_v)
    ff = _plus(_minus(_scaled(_skew(w), m.fluid_magnus), added_w), _flow_rate(m, v))
    return tt, ft, tf, ff


def _turn_drag_rate(m: InsideModel, w: Components) -> Matrix:
    size, turning = safe_norm(m.fluid_turn_axes * w)
    pull = m.fluid_drag_turn / torch.where(turning, size, 1.0)
    uniform = -(m.fluid_viscous_turn + m.fluid_drag_turn * size)
    along = [axis * axis * x for axis, x in zip(m.fluid_turn_axes, w, strict=True)]
    return _plus(_diagonal([uniform] * 3), [w * (-pull * x) for x in along])


def _flow_rate(m: InsideModel, v: Components) -> Matrix:
    """Derivative of drag and lift by the linear velocity, both s^2 times a function of the direction u alone."""
    u, speed = normalize(v)
    n, num, denom, area, cosine = section(m, u)
    q = m.fluid_sections
    # Relative change of the area, and of area * cosine / s, along each axis, times s.
    spread = [x / denom * k - x / num for x, k in zip(n, q, strict=True)]
    drag = m.fluid_drag + m.fluid_drag_area * area
    uniform = -(m.fluid_viscous + speed * drag)
    lift = m.fluid_kutta * area * cosine * speed
    columns = []
    for k, unit in enumerate(_diagonal([torch.ones_like(speed)] * 3)):
        slope = drag * u[k] + m.fluid_drag_area * area * spread[k]
        side = unit * (num - q[k]) + 2.0 * (u * n[k] - n * u[k]) + (u * num - n) * (-spread[k] - u[k])
        columns.append(unit * uniform - u * (speed * slope) + side * lift)
    return columns


def _turned(mat: Stacked, columns: Matrix) -> Matrix:
    """R A R' of a matrix given in a local frame."""
    world = [to_world(mat, x) for x in columns]
    return [_combined(world, mat[3 * k : 3 * k + 3]) for k in range(3)]


def _skew(a: Stacked) -> Matrix:
    """The matrix of ``a x``."""
    x, y, z = a
    zero = torch.zeros_like(x)
    return [Components((zero, z, -y)), Components((-z, zero, x)), Components((y, -x, zero))]


def _times_skew(columns: Matrix, a: Stacked) -> Matrix:
    return [_combined(columns, x) for x in _skew(a)]


def _combined(columns: Matrix, x: Stacked) -> Components:
    return columns[0] * x[0] + columns[1] * x[1] + columns[2] * x[2]


def _times_diagonal(columns: Matrix, x: Stacked) -> Matrix:
    return [column * k for column, k in zip(columns, x, strict=True)]


def _scaled(columns: Matrix, x: Tensor | float) -> Matrix:
    return [column * x for column in columns]


def _diagonal(x: list[Tensor]) -> Matrix:
    zero = torch.zeros_like(x[0])
    return [Components(x[k] if i == k else zero for i in range(3)) for k in range(3)]


def _transposed(columns: Matrix) -> Matrix:
    return [Components(column[k] for column in columns) for k in range(3)]


def _plus(a: Matrix, b: Matrix) -> Matrix:
    return [x + y for x, y in zip(a, b, strict=True)]


def _minus(a: Matrix, b: Matrix) -> Matrix:
    return [x - y for x, y in zip(a, b, strict=True)]


def _mean(a: Matrix, b: Matrix) -> Matrix:
    return _scaled(_plus(a, b), 0.5)
