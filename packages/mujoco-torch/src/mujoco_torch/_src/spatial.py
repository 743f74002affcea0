"""Vectors, quaternions and spatial (6-D) vectors in the inside layout.

Every quantity is component-major: a vector is ``[3, n, B]``, a quaternion ``[4, n, B]`` (w, x, y, z), a rotation
matrix ``[9, n, B]`` row-major, a spatial vector ``[6, n, B]`` (rotation, translation), with items
in the middle and worlds last.
Functions only look at the first axis, so any trailing shape works. They take stacked tensors or ``Components`` and
return ``Components``, which are not stacked before something needs one tensor.

Formulas: MuJoCo documentation, chapter "Computation"; Featherstone, "Rigid Body Dynamics Algorithms" (2008), ch. 2.
"""

import torch
from torch import Tensor

from mujoco_torch._src.components import Components, join

Stacked = Tensor | Components

MINVAL = 1e-15  # mjMINVAL: what MuJoCo takes for zero
SMALL_SQUARE = 1e-8  # squared angle below which two terms of the series are exact in float64


def dot(a: Stacked, b: Stacked) -> Tensor:
    """Inner product over the component axis: ``[k, ...]`` x ``[k, ...]`` -> ``[...]``."""
    total = a[0] * b[0]
    for x, y in zip(a[1:], b[1:], strict=True):
        total = total + x * y
    return total


def cross(a: Stacked, b: Stacked) -> Components:
    """Cross product of two vectors ``[3, ...]``."""
    ax, ay, az = a
    bx, by, bz = b
    return Components((ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx))


def _positive_norm(a: Stacked) -> tuple[Tensor, Tensor]:
    """Length over the component axis, 1 where it is zero, and where it is not.

    The square root never sees zero, so its gradient is finite: zero at a zero vector.
    """
    square = dot(a, a)
    nonzero = square > MINVAL * MINVAL
    return torch.where(nonzero, square, 1.0).sqrt(), nonzero


def safe_norm(a: Stacked) -> tuple[Tensor, Tensor]:
    """Length over the component axis, and where it is not zero; its gradient at a zero vector is zero."""
    length, nonzero = _positive_norm(a)
    return torch.where(nonzero, length, 0.0), nonzero


def norm(a: Stacked) -> Tensor:
    """Length over the component axis; its gradient at a zero vector is zero."""
    return safe_norm(a)[0]


def normalize(a: Stacked) -> tuple[Components, Tensor]:
    """Unit vector and length; a zero vector becomes the first basis vector, as in ``mju_normalize``."""
    length, nonzero = _positive_norm(a)
    scale = torch.where(nonzero, length.reciprocal(), 0.0)
    first = torch.where(nonzero, a[0] * scale, 1.0)
    return join((first,), a[1:] * scale), torch.where(nonzero, length, 0.0)


def quat_mul(p: Stacked, q: Stacked) -> Components:
    """Hamilton product of quaternions ``[4, ...]``."""
    pw, px, py, pz = p
    qw, qx, qy, qz = q
    return Components(
        (
            pw * qw - px * qx - py * qy - pz * qz,
            pw * qx + px * qw + py * qz - pz * qy,
            pw * qy - px * qz + py * qw + pz * qx,
            pw * qz + px * qy - py * qx + pz * qw,
        )
    )


def rotate(q: Stacked, v: Stacked) -> Components:
    """Vector ``v`` rotated by the unit quaternion ``q``."""
    w, axis = q[0], q[1:]
    # Sums, not products with 2.0, here and below: a constant costs the compiler more than an operation does.
    return v + cross(axis + axis, w * v + cross(axis, v))


def quat_to_mat(q: Stacked) -> Components:
    """Rotation matrix ``[9, ...]`` of a unit quaternion ``[4, ...]``."""
    w, x, y, z = q
    ww, xx, yy, zz = w * w, x * x, y * y, z * z
    w2, x2 = w + w, x + x
    xy, xz, yz, wx, wy, wz = x2 * y, x2 * z, (y + y) * z, w2 * x, w2 * y, w2 * z
    return Components(
        (
            ww + xx - yy - zz, xy - wz, xz + wy,
            xy + wz, ww - xx + yy - zz, yz - wx,
            xz - wy, yz + wx, ww - xx - yy + zz,
        )
    )  # fmt: skip


def axis_angle_to_quat(axis: Stacked, angle: Tensor) -> Components:
    """Quaternion of a turn by ``angle`` [rad] about the unit vector ``axis``."""
    half = 0.5 * angle
    s = half.sin()
    return Components((half.cos(), axis[0] * s, axis[1] * s, axis[2] * s))


def rotation_vector_to_quat(v: Stacked) -> Components:
    """Quaternion of the rotation vector ``v`` [rad]; value and gradient are exact at zero."""
    square = dot(v, v)
    small = square < SMALL_SQUARE
    angle = torch.where(small, 1.0, square).sqrt()
    half = 0.5 * angle
    w = torch.where(small, 1.0 - square / 8.0, half.cos())
    scale = torch.where(small, 0.5 - square / 48.0, half.sin() / angle)
    return Components((w, v[0] * scale, v[1] * scale, v[2] * scale))


def quat_to_rotation_vector(q: Stacked) -> Components:
    """Rotation vector [rad] of a unit quaternion, the shorter way round (``mju_quat2Vel``); exact at identity."""
    axis = q[1:]
    w = q[0].abs()
    square = dot(axis, axis)
    small = square < SMALL_SQUARE
    sin_half = torch.where(small, 1.0, square).sqrt()
    series = 2.0 - square * (2.0 / 3.0) + 2.0 * (1.0 - w)
    scale = torch.where(small, series, 2.0 * torch.atan2(sin_half, w) / sin_half)
    scale = torch.where(q[0] < 0, -scale, scale)
    return Components(x * scale for x in axis)


def rotation_vector_rate(v: Stacked, w: Stacked) -> Components:
    """Rate of the rotation vector ``v`` of a frame that turns with local angular velocity ``w``; smooth at zero.

    The inverse of the derivative of the exponential map: ``w + v x w / 2 + c v x (v x w)`` with
    ``c = (1 - |v|/2 cot(|v|/2)) / |v|^2`` (Iserles et al., "Lie-group methods", Acta Numerica 9 (2000), section 2.6).
    """
    square = dot(v, v)
    small = square < SMALL_SQUARE
    angle = torch.where(small, 1.0, square).sqrt()
    exact = (1.0 - 0.5 * angle / (0.5 * angle).tan()) / torch.where(small, 1.0, square)
    c = torch.where(small, 1.0 / 12.0 + square / 720.0, exact)
    turned = cross(v, w)
    return w + 0.5 * turned + c * cross(v, turned)


def motion_cross(v: Stacked, m: Stacked) -> Components:
    """Spatial cross product of motion vectors ``[6, ...]`` (``mju_crossMotion``)."""
    rot, lin = v[:3], v[3:]
    return join(cross(rot, m[:3]), cross(rot, m[3:]) + cross(lin, m[:3]))


def force_cross(v: Stacked, f: Stacked) -> Components:
    """Spatial cross product of a motion vector with a force vector ``[6, ...]`` (``mju_crossForce``)."""
    rot, lin = v[:3], v[3:]
    return join(cross(rot, f[:3]) + cross(lin, f[3:]), cross(rot, f[3:]))


def inertia_mul(inertia: Stacked, v: Stacked) -> Components:
    """Spatial inertia ``[10, ...]`` (``cinert``: 6 of the rotational part, 3 mass times offset, mass) times motion."""
    xx, yy, zz, xy, xz, yz = inertia[:6]
    moment, mass = inertia[6:9], inertia[9]
    wx, wy, wz = v[:3]
    rotational = Components(
        (xx * wx + xy * wy + xz * wz, xy * wx + yy * wy + yz * wz, xz * wx + yz * wy + zz * wz)
    )
    return join(rotational + cross(moment, v[3:]), mass * v[3:] - cross(moment, v[:3]))


def integrate_quat(q: Stacked, velocity: Stacked, dt: Tensor | float) -> Components:
    """Unit quaternion ``q`` moved by a local angular velocity [rad/s] for ``dt`` [s] (``mju_quatIntegrate``)."""
    return normalize(quat_mul(q, rotation_vector_to_quat(velocity * dt)))[0]
