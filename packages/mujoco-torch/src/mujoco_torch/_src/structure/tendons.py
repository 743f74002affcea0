"""Structure and arrays of tendons: paths cut into straight pieces and wraps, springs, dampers, armature."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import mujoco
import numpy as np

from mujoco_torch._src.enums import DisableBit, TendonType, WrapType
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.structure.arrays import MINVAL, Part, disabled, items, moved_by, placed, select
from mujoco_torch._src.structure.reflected import reflected


class Piece(NamedTuple):
    """From one site of a spatial tendon to the next, around or through a geom or straight."""

    tendon: int
    site0: int
    site1: int
    weight: float  # share of the tendon's length: one over the divisor of the pulley
    geom: int = -1
    side: int = -1

    @property
    def sites(self) -> tuple[int, int]:
        """Both ends."""
        return self.site0, self.site1


def tendons(mjm: mujoco.MjModel) -> Part:
    """Lengths and Jacobians of tendons, and the forces they pass on."""
    pieces = list(_pieces(mjm))
    obstacle = [p.geom >= 0 and mjm.geom_size[p.geom, 0] >= MINVAL for p in pieces]
    wraps = [p for p, wrapped in zip(pieces, obstacle, strict=True) if wrapped]
    straight = [p for p, wrapped in zip(pieces, obstacle, strict=True) if not wrapped]
    parts = (
        _fixed(mjm),
        _spatial(mjm, straight, wraps),
        _wraps(mjm, wraps),
        _passive(mjm),
        _plastic(mjm),
        _armature(mjm, straight),
    )
    static: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for values, more in parts:
        static |= values
        arrays |= more
    return static, arrays


def _pieces(mjm: mujoco.MjModel) -> Iterator[Piece]:
    """The paths of the spatial tendons, piece by piece."""
    for t in range(mjm.ntendon):
        if mjm.tendon_type[t] != TendonType.SPATIAL:
            continue
        weight, last, geom, side = 1.0, -1, -1, -1
        for w in range(mjm.tendon_adr[t], mjm.tendon_adr[t] + mjm.tendon_num[t]):
            kind, obj, prm = mjm.wrap_type[w], int(mjm.wrap_objid[w]), mjm.wrap_prm[w]
            if kind == WrapType.PULLEY:
                weight, last = 1.0 / prm, -1
            elif kind == WrapType.SITE:
                if last >= 0:
                    yield Piece(t, last, obj, weight, geom, side)
                last, geom, side = obj, -1, -1
            else:
                geom, side = obj, round(prm)


def _fixed(mjm: mujoco.MjModel) -> Part:
    """Fixed tendons: linear in the positions of slides and hinges."""
    of_qpos = np.zeros((mjm.ntendon, mjm.nq))
    jacobian = np.zeros((mjm.ntendon, mjm.nv))
    for t in np.flatnonzero(mjm.tendon_type == TendonType.FIXED):
        for w in range(mjm.tendon_adr[t], mjm.tendon_adr[t] + mjm.tendon_num[t]):
            joint, coef = mjm.wrap_objid[w], mjm.wrap_prm[w]
            of_qpos[t, mjm.jnt_qposadr[joint]] = coef
            jacobian[t, mjm.jnt_dofadr[joint]] = coef
    fixed = bool((mjm.tendon_type == TendonType.FIXED).any())
    return dict(fixed_tendon=fixed), dict(
        tendon_qpos=Pattern.of_matrix(of_qpos), tendon_J0=jacobian[..., None]
    )


def _spatial(mjm: mujoco.MjModel, straight: list[Piece], wraps: list[Piece]) -> Part:
    """Straight segments: the straight pieces, then for each wrap site to site, site to geom, geom to site."""
    geom = [int(mjm.geom_bodyid[p.geom]) for p in wraps]
    start, stop = ([int(mjm.site_bodyid[p.sites[end]]) for p in (*straight, *wraps)] for end in (0, 1))
    n = len(straight)
    bodies0 = start + start[n:] + geom
    bodies1 = stop + geom + stop[n:]
    owner = [*straight, *wraps, *wraps, *wraps]
    ends = [*bodies0, *bodies1]
    static = dict(straight_piece=n, wrap_piece=len(wraps))
    arrays = dict(
        piece_start=select([p.site0 for p in (*straight, *wraps)], mjm.nsite),
        piece_stop=select([p.site1 for p in (*straight, *wraps)], mjm.nsite),
        segment_root=select(mjm.body_rootid[ends] if ends else [], mjm.nbody),
        tendon_segment=_sums(owner, mjm.ntendon),
        tendon_wrap=_sums(wraps, mjm.ntendon),
        **_jacobian(mjm, owner, bodies0, bodies1),
    )
    return static, arrays


def _sums(pieces: list[Piece], ntendon: int) -> Pattern:
    """Adds up lengths of segments to tendons."""
    return Pattern([(p.tendon, s, p.weight) for s, p in enumerate(pieces)], (ntendon, len(pieces)))


def _jacobian(mjm: mujoco.MjModel, owner: list[Piece], bodies0: list[int], bodies1: list[int]) -> dict:
    """Elements of the Jacobian that can be other than zero, as sums over the ends of segments.

    A dof that moves both ends of a segment does not change its length.
    """
    moved = moved_by(mjm)
    places: dict[tuple[int, int], dict[int, float]] = {}
    for s, piece in enumerate(owner):
        change = moved[bodies1[s]] - moved[bodies0[s]]
        for dof in np.flatnonzero(change):
            end = s + (len(owner) if change[dof] > 0 else 0)
            places.setdefault((piece.tendon, int(dof)), {})[end] = change[dof] * piece.weight
    elements = sorted(places)
    entries = [(e, end, x) for e, place in enumerate(elements) for end, x in places[place].items()]
    return dict(
        tendon_dof=select([dof for _, dof in elements], mjm.nv),
        tendon_end=Pattern(entries, (len(elements), 2 * len(owner))),
        tendon_dense=select([t * mjm.nv + dof for t, dof in elements], mjm.ntendon * mjm.nv).T,
    )


def _wraps(mjm: mujoco.MjModel, wraps: list[Piece]) -> Part:
    """Obstacles of the wraps. Which branches can be taken is static where geom and side site are on one body."""
    geoms = [p.geom for p in wraps]
    cylinder = np.array([mjm.geom_type[g] == mujoco.mjtGeom.mjGEOM_CYLINDER for g in geoms], float)
    sided = np.array([p.side >= 0 for p in wraps], float)
    inside = [_inside(mjm, p) for p in wraps]
    static = dict(
        wrap_spheres=bool((cylinder == 0).any()),
        wrap_cylinders=bool(cylinder.any()),
        wrap_sides=bool(sided.any()),
        wrap_through=any(x is not False for x in inside),
        wrap_around=any(x is not True for x in inside),
    )
    arrays = dict(
        wrap_geom=select(geoms, mjm.ngeom),
        wrap_side=select([p.side for p in wraps], mjm.nsite),
        wrap_radius=items(mjm.geom_size[geoms, 0] if geoms else np.zeros(0)),
        wrap_cylinder=items(cylinder),
        wrap_sided=items(sided),
    )
    return static, arrays


def _inside(mjm: mujoco.MjModel, piece: Piece) -> bool | None:
    """Whether the side site is within the radius of the geom; None where that may change."""
    if piece.side < 0:
        return False
    if mjm.site_bodyid[piece.side] != mjm.geom_bodyid[piece.geom]:
        return None
    distance = np.linalg.norm(placed(mjm, "site")[0][piece.side] - placed(mjm, "geom")[0][piece.geom])
    radius = mjm.geom_size[piece.geom, 0]
    on_surface = abs(distance - radius) < 1e-6 * radius  # decided by rounding
    return None if on_surface else bool(distance < radius)


def _passive(mjm: mujoco.MjModel) -> Part:
    """Coefficients of springs and dampers, linear and higher; the two disable flags are independent."""
    spring = np.concatenate([mjm.tendon_stiffness[:, None], mjm.tendon_stiffnesspoly], 1)
    damper = np.concatenate([reflected(mjm).tendon_damping[:, None], reflected(mjm).tendon_dampingpoly], 1)
    spring = spring * (not disabled(mjm, DisableBit.SPRING))
    damper = damper * (not disabled(mjm, DisableBit.DAMPER))
    lengthspring = mjm.tendon_lengthspring.reshape(-1, 2).copy()
    lengthspring[mjm.tendon_plasticadr >= 0] = 0.0  # in the state instead
    static = dict(tendon_springs=bool(spring.any()), tendon_dampers=bool(damper.any()))
    arrays = dict(
        tendon_spring=items(spring),
        tendon_damper=items(damper),
        tendon_lengthspring=items(lengthspring),
    )
    return static, arrays


def _plastic(mjm: mujoco.MjModel) -> Part:
    """Springs that yield: where their two rest lengths are in ``plastic``, and how far they stretch before."""
    tendons = np.flatnonzero(mjm.tendon_plasticadr >= 0)
    adr = mjm.tendon_plasticadr
    lengths = [(end * mjm.ntendon + t, adr[t] + end, 1) for end in range(2) for t in tendons]
    static = dict(
        plastic_tendons=len(tendons),
        tendon_yields=bool(len(tendons)) and not disabled(mjm, DisableBit.SPRING),
        tendons_of_start=bool(mjm.ntendon and mjm.nplastic),
    )
    arrays = dict(
        plastic_lengthspring=Pattern(lengths, (2 * mjm.ntendon, mjm.nplastic)),
        plastic_tendon=select([adr[t] + end for end in range(2) for t in tendons], mjm.nplastic),
        plastic_length=select(tendons, mjm.ntendon),
        # as in C, a threshold below zero, which only an edited model has, is none
        tendon_springyield=items(np.maximum(mjm.tendon_springyield[tendons], 0.0)),
    )
    return static, arrays


def _armature(mjm: mujoco.MjModel, straight: list[Piece]) -> Part:
    """Places of M that armature adds to, and the segments that give its bias force.

    As in C, M keeps its own sparsity: a product of dofs on different branches is left out.
    """
    armature, nv = reflected(mjm).tendon_armature, mjm.nv
    heavy = np.flatnonzero(armature)
    dofs = {t: set(_dofs(mjm, t)) for t in heavy}
    rows = np.repeat(np.arange(nv), mjm.M_rownnz) if nv else []
    places = [
        (c, t * nv + row, t * nv + col, armature[t])
        for c, (row, col) in enumerate(zip(rows, mjm.M_colind, strict=True))
        for t in heavy
        if row in dofs[t] and col in dofs[t]
    ]
    moving = [
        p for p in straight if p.tendon in dofs and mjm.site_bodyid[p.site0] != mjm.site_bodyid[p.site1]
    ]
    sites = [p.site0 for p in moving] + [p.site1 for p in moving]
    bodies = mjm.site_bodyid[sites] if sites else []
    static = dict(tendon_inertia=bool(places), tendon_bias=bool(moving))
    arrays = dict(
        tendon_armature=items(armature),
        armature_row=select([row for _, row, _, _ in places], mjm.ntendon * nv),
        armature_col=select([col for _, _, col, _ in places], mjm.ntendon * nv),
        armature_M=select([c for c, _, _, _ in places], mjm.nC).T,
        armature_value=items(np.array([x for *_, x in places])),
        bias_site=select(sites, mjm.nsite),
        bias_body=select(bodies, mjm.nbody),
        bias_root=select(mjm.body_rootid[bodies] if sites else [], mjm.nbody),
        bias_tendon=_sums(moving, mjm.ntendon),
    )
    return static, arrays


def _dofs(mjm: mujoco.MjModel, tendon: int) -> np.ndarray:
    """Dofs that can change the length of a tendon."""
    start = mjm.ten_J_rowadr[tendon]
    return mjm.ten_J_colind[start : start + mjm.ten_J_rownnz[tendon]]
