"""Contacts of planes, spheres and capsules, in the inside layout.

Every collider looks at ``n`` geom pairs of one kind in ``B`` worlds at once:

    collider(pos1, mat1, size1, pos2, mat2, size2, margin) -> Contacts

``pos`` is ``[3, n, B]`` [m] and ``mat`` ``[9, n, B]`` (row-major), both of the geom in the world frame;
``size`` is ``[3, n, B]`` [m] and ``margin`` ``[n, B]`` [m] or a float: up to this distance a contact is
listed, so it is margin plus gap of the pair. Any of them may have one world (``B = 1``) that serves all.

Contact normals point from geom 1 to geom 2. Slots, order and special cases are those of MuJoCo 4.0
(``engine_collision_primitive.c``, and the chapter "Computation" of its documentation), checked against C.
Nothing in here divides by zero or takes the root of zero, so gradients stay finite in degenerate poses.

Departure from MuJoCo C: where C takes a vector shorter than ``mjMINVAL`` for zero, the threshold on the
projected capsule axis of a plane contact grows with the rounding of the dtype; in float64 it is ``mjMINVAL``.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mujoco_torch._src.components import Components, join, where
from mujoco_torch._src.enums import GeomType
from mujoco_torch._src.spatial import MINVAL, Stacked, cross, dot, normalize, safe_norm

PARALLEL = 1e-8  # squared sine of the angle up to which MuJoCo takes two capsules for parallel
ROUNDING_STEPS = 4.0  # shorter than this many rounding steps of the dtype, a projected unit axis is noise


class Contacts(NamedTuple):
    """Contacts of ``n`` pairs in ``k`` slots each; active slots come first, in C's order.

    The components stay apart: ``collision`` puts those of all kinds of pairs into one tensor.
    """

    dist: tuple[Tensor, ...]
    """distance of the surfaces [m], negative in penetration, ``[n, B]``, of each slot"""
    pos: tuple[Stacked, ...]
    """midpoint between the surfaces [m], world frame, ``[3, n, B]``, of each slot"""
    normal: tuple[Stacked, ...]
    """unit normal, world frame, ``[3, n, B]``, of each slot; of the kinds in ``ONE_FRAME`` one for all slots"""
    active: tuple[Tensor, ...]
    """whether MuJoCo would list the contact, bool, ``[n, B]``, of each slot"""
    hint: Stacked | None = None
    """unit vector along which the first tangent goes, of the kinds in ``ONE_FRAME``"""


class _Touch(NamedTuple):
    """One candidate contact per pair: ``[n, B]``, ``[3, n, B]``, ``[3, n, B]``, ``[n, B]``."""

    dist: Tensor
    pos: Stacked
    normal: Stacked
    active: Tensor


def _axis(mat: Tensor) -> Tensor:
    """The z axis of a frame, ``[9, ...] -> [3, ...]``: normal of a plane, axis of a capsule."""
    return mat[2::3]


def _least_length(vector: Stacked) -> float:
    """Length under which a projected unit vector is taken for zero."""
    return max(MINVAL, ROUNDING_STEPS * torch.finfo(vector[0].dtype).eps)


def default_hint(normal: Stacked) -> Components:
    """Where the first tangent goes if nothing tells: the world's y axis, or z near y (``mju_makeFrame``)."""
    use_y = (normal[1].abs() < 0.5).to(normal[1].dtype)
    return Components((torch.zeros_like(use_y), use_y, 1.0 - use_y))


def frame_along(normal: Stacked, hint: Stacked) -> Components:
    """Contact frame ``[9, ...]`` of a unit normal; the first tangent is the unit vector ``hint`` made orthogonal.

    Where they are parallel the first tangent is the world's x axis, whatever the normal, as in C.
    """
    tangent = hint - normal * dot(normal, hint)
    length, _ = safe_norm(tangent)
    defined = length >= _least_length(normal)
    scale = torch.where(defined, 1.0 / torch.where(defined, length, 1.0), 0.0)
    first = torch.where(defined, tangent[0] * scale, 1.0)
    tangent = join((first,), tangent[1:] * scale)
    return join(normal, tangent, cross(normal, tangent))


def _single(touch: _Touch) -> Contacts:
    """One slot per pair."""
    return Contacts((touch.dist,), (touch.pos,), (touch.normal,), (touch.active,))


def _packed(first: _Touch, second: _Touch) -> Contacts:
    """Two candidates per pair in two slots; a lone second one moves up."""

    def pick(a: Stacked, b: Stacked) -> Components:
        return Components(torch.where(first.active, x, y) for x, y in zip(a, b, strict=True))

    return Contacts(
        (torch.where(first.active, first.dist, second.dist), second.dist),
        (pick(first.pos, second.pos), second.pos),
        (pick(first.normal, second.normal), second.normal),
        (first.active | second.active, first.active & second.active),
    )


def _plane_touch(
    point: Tensor, normal: Tensor, center: Tensor, radius: Tensor, margin: Tensor | float
) -> _Touch:
    """A sphere against the plane through ``point``."""
    height = dot(center - point, normal)
    dist = height - radius
    pos = center - normal * (0.5 * dist + radius)
    return _Touch(dist, pos, normal, height <= margin + radius)


def _sphere_touch(
    center1: Tensor,
    axis1: Tensor,
    radius1: Tensor,
    center2: Tensor,
    axis2: Tensor,
    radius2: Tensor,
    margin: Tensor | float,
) -> _Touch:
    """Two spheres; where the centres coincide the normal is the cross product of the axes, or x."""
    offset = center2 - center1
    reach = margin + radius1 + radius2
    length, apart = safe_norm(offset)
    away = offset / torch.where(apart, length, 1.0)
    normal = where(apart, away, normalize(cross(axis1, axis2))[0])
    dist = length - radius1 - radius2
    pos = center1 + normal * (radius1 + 0.5 * dist)
    return _Touch(dist, pos, normal, dot(offset, offset) <= reach * reach)


def plane_sphere(
    pos1: Tensor,
    mat1: Tensor,
    size1: Tensor,
    pos2: Tensor,
    mat2: Tensor,
    size2: Tensor,
    margin: Tensor | float,
) -> Contacts:
    """A plane and a sphere: one slot."""
    return _single(_plane_touch(pos1, _axis(mat1), pos2, size2[0], margin))


def plane_capsule(
    pos1: Tensor,
    mat1: Tensor,
    size1: Tensor,
    pos2: Tensor,
    mat2: Tensor,
    size2: Tensor,
    margin: Tensor | float,
) -> Contacts:
    """A plane and a capsule: upper end (positive axis), lower end; the first tangent follows the capsule."""
    normal, axis = _axis(mat1), _axis(mat2)
    segment = axis * size2[1]
    upper = _plane_touch(pos1, normal, pos2 + segment, size2[0], margin)
    lower = _plane_touch(pos1, normal, pos2 - segment, size2[0], margin)
    return _packed(upper, lower)._replace(normal=(normal,), hint=axis)


def sphere_sphere(
    pos1: Tensor,
    mat1: Tensor,
    size1: Tensor,
    pos2: Tensor,
    mat2: Tensor,
    size2: Tensor,
    margin: Tensor | float,
) -> Contacts:
    """Two spheres: one slot."""
    return _single(_sphere_touch(pos1, _axis(mat1), size1[0], pos2, _axis(mat2), size2[0], margin))


def sphere_capsule(
    pos1: Tensor,
    mat1: Tensor,
    size1: Tensor,
    pos2: Tensor,
    mat2: Tensor,
    size2: Tensor,
    margin: Tensor | float,
) -> Contacts:
    """A sphere and a capsule: one slot, at the point of the capsule's segment nearest to the sphere."""
    axis, half = _axis(mat2), size2[1]
    along = dot(axis, pos1 - pos2)
    nearest = pos2 + axis * torch.minimum(torch.maximum(along, -half), half)
    return _single(_sphere_touch(pos1, _axis(mat1), size1[0], nearest, axis, size2[0], margin))


def capsule_capsule(
    pos1: Tensor,
    mat1: Tensor,
    size1: Tensor,
    pos2: Tensor,
    mat2: Tensor,
    size2: Tensor,
    margin: Tensor | float,
) -> Contacts:
    """Two capsules: the nearest points of their segments, or the two ends of the overlap of parallel ones.

    Parallel segments that do not overlap give the same contact twice, as in C.
    """
    axis1, axis2 = _axis(mat1), _axis(mat2)
    lower1, span1 = _segment(pos1, axis1 * size1[1])
    lower2, span2 = _segment(pos2, axis2 * size2[1])
    weights, twice = _nearest(lower1 - lower2, span1, span2)
    first, second = (
        _sphere_touch(lower1 + span1 * s, axis1, size1[0], lower2 + span2 * t, axis2, size2[0], margin)
        for s, t in weights
    )
    return _packed(first, second._replace(active=second.active & twice))


def _segment(center: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Lower end of a segment and the vector to its upper end, rounded as C rounds them."""
    lower = center - half
    return lower, (center + half) - lower


def _nearest(
    offset: Tensor, span1: Tensor, span2: Tensor
) -> tuple[tuple[tuple[Tensor, Tensor], ...], Tensor]:
    """Weights ``s, t`` in [0, 1] of the nearest points of two segments whose lower ends are ``offset`` apart.

    Returns two candidates ``((s, t), (s', t'))`` and where the second one counts: at parallel segments.
    Minimises ``|offset + s span1 - t span2|^2`` over s, then t, then s again where t met its bound. The
    determinant is the squared cross product (Lagrange's identity), exact for nearly parallel axes too.
    """
    square1, square2 = dot(span1, span1), dot(span2, span2)
    point1, point2 = square1 <= MINVAL, square2 <= MINVAL
    square1, square2 = torch.where(point1, 1.0, square1), torch.where(point2, 1.0, square2)
    along1, along2, both = dot(span1, offset), dot(span2, offset), dot(span1, span2)
    normal = cross(span1, span2)
    det = dot(normal, normal)
    skew = (det > PARALLEL * square1 * square2) & ~(point1 | point2)
    crossing = dot(normal, cross(span2, offset)) / torch.where(skew, det, 1.0)

    def opposite(t: float) -> Tensor:
        return torch.clamp((both * t - along1) / square1, 0.0, 1.0)

    def settle(s: Tensor) -> tuple[Tensor, Tensor]:
        t = (both * s + along2) / square2
        s = torch.where(t < 0.0, opposite(0.0), torch.where(t > 1.0, opposite(1.0), s))
        return s, torch.clamp(t, 0.0, 1.0)

    s, t = settle(torch.where(skew, torch.clamp(crossing, 0.0, 1.0), 0.0))
    s = torch.where(point1, 0.0, torch.where(point2, opposite(0.0), s))
    t = torch.where(point2, 0.0, t)
    return ((s, t), settle(torch.ones_like(s))), ~(skew | point1 | point2)


Collider = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | float], Contacts]

COLLIDERS: dict[tuple[int, int], Collider] = {
    (GeomType.PLANE, GeomType.SPHERE): plane_sphere,
    (GeomType.PLANE, GeomType.CAPSULE): plane_capsule,
    (GeomType.SPHERE, GeomType.SPHERE): sphere_sphere,
    (GeomType.SPHERE, GeomType.CAPSULE): sphere_capsule,
    (GeomType.CAPSULE, GeomType.CAPSULE): capsule_capsule,
}
"""Collider of each supported pair of geom types (smaller type first)."""

ONE_FRAME = frozenset({(GeomType.PLANE, GeomType.CAPSULE)})
"""Kinds of pairs whose contacts have one frame: the plane's normal, the first tangent along the capsule."""
