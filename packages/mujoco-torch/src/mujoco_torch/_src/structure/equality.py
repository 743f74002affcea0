"""Structure and arrays of equality constraints.

Connect and weld hold two *anchors* together, points (and frames) fixed to two bodies. Joint and tendon equalities make
one scalar a polynomial of another: *couplings*. Their values of the Jacobian are those of the rows in
``equality_rows``, one after the other.
"""

from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np

from mujoco_torch._src.enums import ConstraintType, DisableBit, EqType, ObjType
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.structure.arrays import (
    IDENTITY,
    Part,
    disabled,
    items,
    moved_by,
    placed,
    select,
    translates,
)

ANCHORED = (EqType.CONNECT, EqType.WELD)
COUPLED = (EqType.JOINT, EqType.TENDON)
KINDS = (*ANCHORED, *COUPLED)
"""Kinds of equality that are simulated."""


@dataclass(frozen=True)
class Row:
    """A constraint row whose values of J are handed to the solver: equality, friction loss or limit."""

    type: ConstraintType
    owner: int
    """id of the equality, dof, joint or tendon"""
    part: int
    """number within the owner; of a limit 0 for the lower side and 1 for the upper"""
    dofs: tuple[int, ...]
    """the dofs it may act on, increasing"""
    solref: np.ndarray
    solimp: np.ndarray
    invweight: float
    margin: float = 0.0
    frictionloss: float = 0.0
    constant: dict[int, float] = field(default_factory=dict)
    """values of J that never change, by dof"""
    tendon: tuple[int, float] | None = None
    """tendon whose Jacobian is a part of this row, and its factor"""
    ball: int = -1
    """ball or free joint, among those with a quaternion, along whose turn the row goes"""


def tendon_dofs(mjm: mujoco.MjModel, tendon: int) -> tuple[int, ...]:
    """The dofs that may change the length of a tendon."""
    start, count = mjm.ten_J_rowadr[tendon], mjm.ten_J_rownnz[tendon]
    return tuple(sorted(int(dof) for dof in mjm.ten_J_colind[start : start + count]))


def equality_rows(mjm: mujoco.MjModel) -> list[Row]:
    """Rows of all equalities, active or not, by id; one that no dof moves has none."""
    if disabled(mjm, DisableBit.EQUALITY | DisableBit.CONSTRAINT):
        return []
    moved = moved_by(mjm)
    return [row for e in range(mjm.neq) for row in _rows_of(mjm, e, moved)]


def _rows_of(mjm: mujoco.MjModel, e: int, moved: np.ndarray) -> list[Row]:
    kind = mjm.eq_type[e]
    if kind in ANCHORED:
        bodies = anchored_bodies(mjm, e)
        if _holds_by_itself(mjm, e, bodies, moved):
            return []
        weights = mjm.body_invweight0[bodies].sum(0)
        dofs = tuple(int(i) for i in np.flatnonzero(moved[bodies].any(0)))
        count = 6 if kind == EqType.WELD else 3
        rows = [_row(mjm, e, k, dofs, float(weights[k // 3])) for k in range(count)]
    else:
        first, second = _objects(mjm, e)
        parts = [coupled_dofs(mjm, kind, i) for i in (first, second) if i >= 0]
        weight = sum(_invweight(mjm, kind, i) for i in (first, second) if i >= 0)
        dofs = tuple(sorted({dof for part in parts for dof in part}))
        moves = {"constant": {parts[0][0]: 1.0}} if kind == EqType.JOINT else {"tendon": (first, 1.0)}
        rows = [_row(mjm, e, 0, dofs, weight, **moves)]
    return rows if dofs else []


def _holds_by_itself(mjm: mujoco.MjModel, e: int, bodies: list[int], moved: np.ndarray) -> bool:
    """Whether no motion separates the anchors of bodies that are one rigid body: then J is zero, and C has no rows."""
    if mjm.body_weldid[bodies[0]] != mjm.body_weldid[bodies[1]]:
        return False
    turning = [i for i in np.flatnonzero(moved[bodies[0]]) if not translates(mjm, i)]
    return not (turning and _by_site(mjm, e))


def _row(mjm: mujoco.MjModel, e: int, part: int, dofs: tuple[int, ...], invweight: float, **moves) -> Row:
    return Row(ConstraintType.EQUALITY, e, part, dofs, mjm.eq_solref[e], mjm.eq_solimp[e], invweight, **moves)


def _objects(mjm: mujoco.MjModel, e: int) -> tuple[int, int]:
    return int(mjm.eq_obj1id[e]), int(mjm.eq_obj2id[e])


def anchored_bodies(mjm: mujoco.MjModel, e: int) -> list[int]:
    """The two bodies of a connect or weld."""
    ids = _objects(mjm, e)
    return [int(mjm.site_bodyid[i]) for i in ids] if _by_site(mjm, e) else list(ids)


def _by_site(mjm: mujoco.MjModel, e: int) -> bool:
    return mjm.eq_objtype[e] == ObjType.SITE


def coupled_dofs(mjm: mujoco.MjModel, kind: int, i: int) -> tuple[int, ...]:
    """The dofs of a coupled joint or tendon."""
    return (int(mjm.jnt_dofadr[i]),) if kind == EqType.JOINT else tendon_dofs(mjm, i)


def _invweight(mjm: mujoco.MjModel, kind: int, i: int) -> float:
    weight = mjm.dof_invweight0[mjm.jnt_dofadr[i]] if kind == EqType.JOINT else mjm.tendon_invweight0[i]
    return float(weight)


def equalities(mjm: mujoco.MjModel, rows: list[Row], total: int) -> Part:
    """Anchors and couplings, and how they make the rows of equalities, the first of the ``total`` values of J."""
    owners = sorted({row.owner for row in rows})
    anchored = [e for e in owners if mjm.eq_type[e] in ANCHORED]
    coupled = [e for e in owners if mjm.eq_type[e] in COUPLED]
    first_static, first = _anchors(mjm, rows, anchored, total)
    second_static, second = _couplings(mjm, rows, coupled, total)
    active = select([row.owner for row in rows], mjm.neq)
    return first_static | second_static, first | second | dict(equality_active=active)


def _anchors(mjm: mujoco.MjModel, rows: list[Row], anchored: list[int], total: int) -> Part:
    """The anchors, first sides then second ones; *links*, each a dof that moves an anchor; and their rows.

    Residuals and values of the links have three or six components, one after the other.
    """
    n = len(anchored)
    bodies = np.array([anchored_bodies(mjm, e) for e in anchored], dtype=int).reshape(n, 2).T.ravel()
    frames = [_anchor_frame(mjm, e, side) for side in (0, 1) for e in anchored]
    weld = [mjm.eq_type[e] == EqType.WELD for e in anchored]
    number = {e: c for c, e in enumerate(anchored)}
    mine = [(i, row, number[row.owner]) for i, row in enumerate(rows) if row.owner in number]
    components = 6 if any(weld) else 3
    return dict(nanchored=n, welds=any(weld)), _links(mjm, rows, number, bodies, components, total) | dict(
        anchor_body=select(bodies, mjm.nbody),
        anchor_root=select(mjm.body_rootid[bodies], mjm.nbody),
        anchor_pos=items(np.array([pos for pos, _ in frames]).reshape(2 * n, 3)),
        anchor_quat=items(np.array([quat for _, quat in frames]).reshape(2 * n, 4)),
        anchor_torque=items(mjm.eq_data[anchored, 10] * weld if n else np.zeros(0)),
        anchored_row=Pattern([(i, row.part * n + c, 1.0) for i, row, c in mine], (len(rows), components * n)),
        anchored_size=Pattern([(i, c, 1.0) for i, _, c in mine], (len(rows), n)),
    )


def _links(
    mjm, rows: list[Row], number: dict[int, int], bodies, components: int, total: int
) -> dict[str, Any]:
    """The dofs that move each anchored pair, by the arms from its anchors, and the values of J that they make."""
    n = len(number)
    dofs = {row.owner: row.dofs for row in rows}  # all rows of an equality share them
    links = [(c, dof) for e, c in number.items() for dof in dofs[e]]
    place = {link: p for p, link in enumerate(links)}
    moved = moved_by(mjm)[bodies]
    arms = [
        (p, side * n + c, sign)
        for p, (c, dof) in enumerate(links)
        for side, sign in ((0, 1.0), (1, -1.0))
        if moved[side * n + c, dof]
    ]
    values = [
        (value, row.part * len(links) + place[number[row.owner], dof], 1.0)
        for value, (row, dof) in enumerate(_values(rows))
        if row.owner in number
    ]
    sign = np.zeros(len(links))
    for p, _, value in arms:
        sign[p] += value
    return dict(
        link_dof=select([dof for _, dof in links], mjm.nv),
        link_arm=Pattern(arms, (len(links), 2 * n)),
        link_anchored=select([c for c, _ in links], n),
        link_sign=items(sign),
        link_value=Pattern(values, (total, components * len(links))),
    )


def _values(rows: list[Row]) -> list[tuple[Row, int]]:
    """The row and the dof of each value of J."""
    return [(row, dof) for row in rows for dof in row.dofs]


def _anchor_frame(mjm: mujoco.MjModel, e: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Position and orientation of an anchor in the frame of its body.

    A weld of bodies holds the frame ``relpose`` of the first body at the second body's own frame, and its position at
    the second body's point.
    """
    if _by_site(mjm, e):
        site = _objects(mjm, e)[side]
        return placed(mjm, "site")[0][site], mjm.site_quat[site]
    data = mjm.eq_data[e]
    if mjm.eq_type[e] == EqType.CONNECT:
        return data[3 * side : 3 * side + 3], np.array(IDENTITY)
    return (data[3:6], data[6:10]) if side == 0 else (data[0:3], np.array(IDENTITY))


def _couplings(mjm: mujoco.MjModel, rows: list[Row], coupled: list[int], total: int) -> Part:
    """The coupled scalars, first ones then second ones, from qpos and tendon lengths; polynomials; rows."""
    n = len(coupled)
    qpos, length = np.zeros((2 * n, mjm.nq)), np.zeros((2 * n, mjm.ntendon))
    reference, coefficients = np.zeros(2 * n), np.zeros((n, 5))
    for c, e in enumerate(coupled):
        for side, i in enumerate(_objects(mjm, e)):
            if i >= 0 and mjm.eq_type[e] == EqType.JOINT:
                qpos[side * n + c, mjm.jnt_qposadr[i]] = 1.0
                reference[side * n + c] = mjm.qpos0[mjm.jnt_qposadr[i]]
            elif i >= 0:
                length[side * n + c, i] = 1.0
                reference[side * n + c] = mjm.tendon_length0[i]
        coefficients[c] = mjm.eq_data[e, :5]
        if _objects(mjm, e)[1] < 0:
            coefficients[c, 1:] = 0.0
    number = {e: c for c, e in enumerate(coupled)}
    entries = [(i, number[row.owner], 1.0) for i, row in enumerate(rows) if row.owner in number]
    static = dict(ncoupled=n, coupled_joints=bool(qpos.any()), coupled_tendons=bool(length.any()))
    more, slopes = _slopes(mjm, rows, number, total)
    return static | more, slopes | dict(
        coupled_qpos=Pattern.of_matrix(qpos),
        coupled_length=Pattern.of_matrix(length),
        coupled_reference=items(reference),
        coupled_coefficients=items(coefficients),
        coupled_row=Pattern(entries, (len(rows), n)),
    )


def _slopes(mjm: mujoco.MjModel, rows: list[Row], number: dict[int, int], total: int) -> Part:
    """Where the second scalars of the couplings enter J: times the slope, and how fast each dof changes them."""
    slope, constant, tendons = [], np.zeros(total), []
    for value, (row, dof) in enumerate(_values(rows)):
        if row.owner not in number:
            continue
        kind, second = mjm.eq_type[row.owner], _objects(mjm, row.owner)[1]
        if second >= 0 and dof in coupled_dofs(mjm, kind, second):
            slope.append((value, number[row.owner], 1.0))
            constant[value] = float(kind == EqType.JOINT)
            if kind == EqType.TENDON:
                tendons.append((value, second * mjm.nv + dof, 1.0))
    return dict(has_slope=bool(slope)), dict(
        slope_value=Pattern(slope, (total, len(number))),
        second_value=items(constant),
        second_tendon=Pattern(tendons, (total, mjm.ntendon * mjm.nv)),
    )
