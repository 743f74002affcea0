"""The geom pairs of a model that can ever touch, in the order of MuJoCo's contact list.

The order does not depend on the pose: MuJoCo 4.0 goes through body pairs by signature (``body1 << 16 |
body2``), lists the predefined pairs of a body pair first, and sorts the rest by geom. So every pair has its
place beforehand, and the contacts of a pose are the active ones in this order.

Not looked at: flexes, sleeping, the flag ``override`` and user callbacks, which a caller has to refuse.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import mujoco
import numpy as np

from mujoco_torch._src.enums import DisableBit, GeomType

MAX_CONTACTS: dict[tuple[int, int], int] = {
    (GeomType.PLANE, GeomType.SPHERE): 1,
    (GeomType.PLANE, GeomType.CAPSULE): 2,
    (GeomType.SPHERE, GeomType.SPHERE): 1,
    (GeomType.SPHERE, GeomType.CAPSULE): 1,
    (GeomType.CAPSULE, GeomType.CAPSULE): 2,
}
"""Most contacts of one pair, by geom types (smaller first), of the kinds simulated here."""

NO_COLLIDER: frozenset[tuple[int, int]] = frozenset(
    {
        (GeomType.PLANE, GeomType.PLANE),
        (GeomType.PLANE, GeomType.HFIELD),
        (GeomType.HFIELD, GeomType.HFIELD),
    }
)
"""Pairs of geom types for which MuJoCo has no collider: never in contact."""


@dataclass(frozen=True)
class GeomPair:
    """A pair of geoms that MuJoCo would test, with the parameters of its contacts."""

    geom1: int
    """geom id; as in ``contact.geom``, the geom of the smaller type comes first"""
    geom2: int
    """geom id"""
    type1: int
    """``GeomType`` of geom1, at most type2"""
    type2: int
    """``GeomType`` of geom2"""
    maxcon: int | None
    """most contacts the pair can have; None: this pair of types is not simulated here"""
    condim: int
    """contact space dimensions: 1, 3, 4 or 6"""
    friction: tuple[float, ...]
    """tangent 1, tangent 2, spin, roll 1, roll 2, each at least ``mjMINMU``"""
    solref: tuple[float, ...]
    """reference of the normal"""
    solreffriction: tuple[float, ...]
    """reference of the friction; zeros: as the normal"""
    solimp: tuple[float, ...]
    """impedance"""
    margin: float
    """a contact nearer than this [m] gets a force (``contact.includemargin``)"""
    gap: float
    """a contact is listed up to margin + gap [m]"""
    adhesion: float
    """force [N] that holds the geoms together in a contact; where it is not zero, contacts in the gap have it, too"""
    pair: int
    """id of the predefined pair, or -1"""
    fixed: bool
    """no joint moves one geom against the other: MuJoCo lists the contact but gives it no row"""


def geom_pairs(mjm: mujoco.MjModel) -> tuple[GeomPair, ...]:
    """Every pair that can give a contact, in the order of ``d.contact``."""
    off = DisableBit.CONSTRAINT | DisableBit.CONTACT
    if mjm.opt.disableflags & off or mjm.nbody + mjm.nflex < 2:
        return ()
    predefined = _predefined_by_signature(mjm)
    dynamic = {int(b1) << 16 | int(b2): (b1, b2) for b1, b2 in _body_pairs(mjm)}
    found: list[GeomPair] = []
    for signature in sorted(predefined.keys() | dynamic.keys()):
        ids = predefined.get(signature, ())
        found += (_predefined_pair(mjm, i) for i in ids if _has_collider(mjm, *_pair_geoms(mjm, i)))
        taken = {frozenset(_pair_geoms(mjm, i)) for i in ids}
        if signature in dynamic:
            geoms = _dynamic_geoms(mjm, *dynamic[signature])
            found += (_dynamic_pair(mjm, g1, g2) for g1, g2 in geoms if frozenset((g1, g2)) not in taken)
    return tuple(found)


@dataclass(frozen=True)
class Slot:
    """A place in the list of contacts."""

    pair: GeomPair
    """what gives the contact; of one in the gap condim is 1"""
    place: int
    """number of the contact among the most that all pairs can have, in the order of the pairs"""
    nearest: float
    """the contact is here from this distance on [m]"""
    farthest: float
    """and below this one [m]"""


def contact_slots(pairs: tuple[GeomPair, ...]) -> list[Slot]:
    """The places of all contacts, in C's order.

    Where adhesion acts, C drops the friction of a contact in the gap. There a contact has two places, of which the
    distance chooses one.
    """
    slots: list[Slot] = []
    place = 0
    for pair in pairs:
        for _ in range(pair.maxcon or 0):  # a pair without a collider has been refused
            if pair.adhesion and pair.condim > 1 and pair.gap >= 0:
                slots.append(Slot(pair, place, -np.inf, pair.margin))
                slots.append(Slot(replace(pair, condim=1), place, pair.margin, np.inf))
            else:
                slots.append(Slot(pair, place, -np.inf, np.inf))
            place += 1
    return slots


def _predefined_by_signature(mjm: mujoco.MjModel) -> dict[int, list[int]]:
    """Ids of the predefined pairs of each body pair; no filter applies to them."""
    by_signature: dict[int, list[int]] = {}
    for i, signature in enumerate(mjm.pair_signature):
        by_signature.setdefault(int(signature), []).append(i)
    return by_signature


def _body_pairs(mjm: mujoco.MjModel) -> Iterator[tuple[int, int]]:
    """Body pairs, smaller id first, that the weld, parent and exclude filters let through."""
    excluded = {int(signature) for signature in mjm.exclude_signature}
    bodies = [b for b in range(mjm.nbody) if mjm.body_geomnum[b]]
    for i, b1 in enumerate(bodies):
        for b2 in bodies[i + 1 :]:
            if (b1 << 16 | b2) not in excluded and not _filtered(mjm, b1, b2):
                yield b1, b2


def _filtered(mjm: mujoco.MjModel, body1: int, body2: int) -> bool:
    """Whether no contact forms between two bodies: welded, both immobile, or parent and child."""
    weld1, weld2 = int(mjm.body_weldid[body1]), int(mjm.body_weldid[body2])
    if _immobile(mjm, weld1, weld2):
        return True
    if mjm.opt.disableflags & DisableBit.FILTERPARENT or weld1 == 0 or weld2 == 0:
        return False
    above1, above2 = (int(mjm.body_weldid[mjm.body_parentid[weld]]) for weld in (weld1, weld2))
    return weld1 == above2 or weld2 == above1


def _immobile(mjm: mujoco.MjModel, weld1: int, weld2: int) -> bool:
    """Whether two weld groups cannot move against each other: the same one, or both without joints."""
    return weld1 == weld2 or not (mjm.body_dofnum[weld1] or mjm.body_dofnum[weld2])


def _dynamic_geoms(mjm: mujoco.MjModel, body1: int, body2: int) -> list[tuple[int, int]]:
    """Geom pairs of a body pair in C's order, the smaller type first.

    With the midphase, contacts are sorted by their two geom ids, after these were put in the order of their
    types; without it they stay in the order of the bodies' geoms.
    """
    pairs = [
        _by_type(mjm, g1, g2)
        for g1, g2 in product(_geoms(mjm, body1), _geoms(mjm, body2))
        if _compatible(mjm, g1, g2) and _has_collider(mjm, g1, g2)
    ]
    if mjm.opt.disableflags & DisableBit.MIDPHASE:
        return pairs
    return sorted(pairs)


def _geoms(mjm: mujoco.MjModel, body: int) -> range:
    start = int(mjm.body_geomadr[body])
    return range(start, start + int(mjm.body_geomnum[body]))


def _pair_geoms(mjm: mujoco.MjModel, pair: int) -> tuple[int, int]:
    return int(mjm.pair_geom1[pair]), int(mjm.pair_geom2[pair])


def _by_type(mjm: mujoco.MjModel, g1: int, g2: int) -> tuple[int, int]:
    return (g2, g1) if mjm.geom_type[g1] > mjm.geom_type[g2] else (g1, g2)


def _types(mjm: mujoco.MjModel, g1: int, g2: int) -> tuple[int, int]:
    g1, g2 = _by_type(mjm, g1, g2)
    return int(mjm.geom_type[g1]), int(mjm.geom_type[g2])


def _has_collider(mjm: mujoco.MjModel, g1: int, g2: int) -> bool:
    return _types(mjm, g1, g2) not in NO_COLLIDER


def _compatible(mjm: mujoco.MjModel, g1: int, g2: int) -> bool:
    """The contype and conaffinity test."""
    return bool(
        mjm.geom_contype[g1] & mjm.geom_conaffinity[g2] or mjm.geom_contype[g2] & mjm.geom_conaffinity[g1]
    )


def _predefined_pair(mjm: mujoco.MjModel, pair: int) -> GeomPair:
    return _make_pair(
        mjm,
        *_pair_geoms(mjm, pair),
        condim=int(mjm.pair_dim[pair]),
        friction=mjm.pair_friction[pair],
        solref=mjm.pair_solref[pair],
        solreffriction=mjm.pair_solreffriction[pair],
        solimp=mjm.pair_solimp[pair],
        margin=float(mjm.pair_margin[pair]),
        gap=float(mjm.pair_gap[pair]),
        adhesion=float(mjm.pair_adhesion[pair]),
        pair=pair,
    )


def _dynamic_pair(mjm: mujoco.MjModel, g1: int, g2: int) -> GeomPair:
    """Parameters mixed from two geoms (``mj_contactParam``): by priority, else by solmix, maximum and sum."""
    ids = [g1, g2]
    priority = mjm.geom_priority[ids]
    if priority[0] != priority[1]:
        winner = g1 if priority[0] > priority[1] else g2
        condim = int(mjm.geom_condim[winner])
        slide, spin, roll = mjm.geom_friction[winner]
        solref, solimp = mjm.geom_solref[winner], mjm.geom_solimp[winner]
        adhesion = mjm.geom_adhesion[winner]
    else:
        mix = _mix(*mjm.geom_solmix[ids])
        condim = int(mjm.geom_condim[ids].max())
        slide, spin, roll = mjm.geom_friction[ids].max(axis=0)
        solref = _mixed_solref(mix, *mjm.geom_solref[ids])
        solimp = mix * mjm.geom_solimp[g1] + (1.0 - mix) * mjm.geom_solimp[g2]
        adhesion = mjm.geom_adhesion[ids].sum()
    return _make_pair(
        mjm,
        g1,
        g2,
        condim=condim,
        friction=np.array((slide, slide, spin, roll, roll)),
        solref=solref,
        solreffriction=np.zeros(mujoco.mjNREF),
        solimp=solimp,
        margin=float(mjm.geom_margin[ids].sum()),
        gap=float(mjm.geom_gap[ids].sum()),
        adhesion=float(adhesion),
        pair=-1,
    )


def _mix(solmix1: float, solmix2: float) -> float:
    """Weight of the first geom; a weight below ``mjMINVAL`` counts as none."""
    if solmix1 < mujoco.mjMINVAL and solmix2 < mujoco.mjMINVAL:
        return 0.5
    if solmix1 < mujoco.mjMINVAL:
        return 0.0
    if solmix2 < mujoco.mjMINVAL:
        return 1.0
    return float(solmix1 / (solmix1 + solmix2))


def _mixed_solref(mix: float, solref1: np.ndarray, solref2: np.ndarray) -> np.ndarray:
    """Weighted mean in the standard format, minimum if either geom uses the direct one (non-positive)."""
    if solref1[0] > 0 and solref2[0] > 0:
        return mix * solref1 + (1.0 - mix) * solref2
    return np.minimum(solref1, solref2)


def _make_pair(mjm: mujoco.MjModel, g1: int, g2: int, **parameters) -> GeomPair:
    """A pair with the smaller type first, friction at its floor, and everything hashable."""
    g1, g2 = _by_type(mjm, g1, g2)
    types = _types(mjm, g1, g2)
    parameters["friction"] = np.maximum(parameters["friction"], mujoco.mjMINMU)
    for name in ("friction", "solref", "solreffriction", "solimp"):
        parameters[name] = tuple(parameters[name].tolist())
    weld1, weld2 = (int(mjm.body_weldid[mjm.geom_bodyid[g]]) for g in (g1, g2))
    return GeomPair(
        geom1=g1,
        geom2=g2,
        type1=types[0],
        type2=types[1],
        maxcon=MAX_CONTACTS.get(types),
        fixed=_immobile(mjm, weld1, weld2),
        **parameters,
    )
