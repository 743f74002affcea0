"""Structure and arrays of the constraint rows: equalities, friction losses, limits, contacts."""

from typing import Any

import mujoco
import numpy as np

from mujoco_torch._src.collision.pairs import MAX_CONTACTS, GeomPair, Slot, contact_slots, geom_pairs
from mujoco_torch._src.collision.primitive import ONE_FRAME
from mujoco_torch._src.enums import ConeType, ConstraintType, DisableBit, JointType
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.solver import RowKind
from mujoco_torch._src.structure.arrays import MINVAL, QUAT_JOINTS, Part, disabled, items, moved_by, select
from mujoco_torch._src.structure.equality import Row, equalities, equality_rows, tendon_dofs


def given(mjm: mujoco.MjModel) -> Part:
    """Rows whose values of J are handed to the solver, in C's order: equalities, friction losses, limits.

    Equalities go by id; friction losses by dof, then by tendon; limits by joint, then by tendon, lower sides first.
    """
    equality, friction, limit = equality_rows(mjm), _friction_rows(mjm), _limit_rows(mjm)
    rows = equality + friction + limit
    places = [(i, dof) for i, row in enumerate(rows) for dof in row.dofs]  # the row and dof of each value
    quat = [j for j in range(mjm.njnt) if mjm.jnt_type[j] in QUAT_JOINTS]
    tendon = _tendon_values(mjm, rows, places)
    ball = [
        (value, rows[i].dofs.index(dof) * len(quat) + rows[i].ball, -1.0)
        for value, (i, dof) in enumerate(places)
        if rows[i].ball >= 0
    ]
    static = dict(
        ne=len(equality),
        nf=len(friction),
        nl=len(limit),
        given_owner=tuple((int(row.type), row.owner, row.part) for row in rows),
        given_kind=tuple(
            [int(RowKind.EQUALITY)] * len(equality)
            + [int(RowKind.FRICTION)] * len(friction)
            + [int(RowKind.LIMIT)] * len(limit)
        ),
        given_dofs=tuple(row.dofs for row in rows),
        given_single=all(len(row.dofs) == 1 for row in rows),
        given_tendon=bool(tendon),
        ball_limit=bool(ball),
    )
    arrays = dict(
        given_constant=items(np.array([rows[i].constant.get(dof, 0.0) for i, dof in places])),
        given_ten_J=Pattern(tendon, (len(places), mjm.ntendon * mjm.nv)),
        given_ball=Pattern(ball, (len(places), 3 * len(quat))),
        frictionloss=items(np.array([row.frictionloss for row in friction])),
    )
    parts = [equalities(mjm, equality, len(places))]
    parts += [_limit_values(mjm, limit, len(quat)), _friction_mass(mjm, friction)]
    parts += [
        _impedance(mjm, "equality", *_parameters(equality)),
        _impedance(mjm, "limit", *_parameters(limit)),
    ]
    for more, some in parts:
        static |= more
        arrays |= some
    damping = [_constants(mjm, *_parameters(some))["damping"] for some in (equality, friction, limit)]
    return static, arrays | dict(given_damping=items(np.concatenate(damping)))


def _tendon_values(mjm: mujoco.MjModel, rows: list[Row], places: list) -> list[tuple[int, int, float]]:
    """Where the Jacobians of tendons enter the values of J: value, element of ``ten_J``, factor."""
    entries = []
    for value, (i, dof) in enumerate(places):
        if (part := rows[i].tendon) and dof in tendon_dofs(mjm, part[0]):
            entries.append((value, part[0] * mjm.nv + dof, part[1]))
    return entries


def _parameters(rows: list[Row]) -> tuple[np.ndarray, ...]:
    """solref, solimp, margin and invweight of rows."""
    return (
        np.array([row.solref for row in rows]).reshape(-1, mujoco.mjNREF),
        np.array([row.solimp for row in rows]).reshape(-1, mujoco.mjNIMP),
        np.array([row.margin for row in rows]),
        np.array([row.invweight for row in rows]),
    )


def _friction_rows(mjm: mujoco.MjModel) -> list[Row]:
    """Friction losses of dofs, then of tendons."""
    if disabled(mjm, DisableBit.FRICTIONLOSS | DisableBit.CONSTRAINT):
        return []
    rows = [
        Row(
            ConstraintType.FRICTION_DOF, i, 0, (i,), mjm.dof_solref[i], mjm.dof_solimp[i],
            float(mjm.dof_invweight0[i]), frictionloss=float(mjm.dof_frictionloss[i]), constant={i: 1.0},
        )
        for i in range(mjm.nv)
        if mjm.dof_frictionloss[i] > 0
    ]  # fmt: skip
    return rows + [
        Row(
            ConstraintType.FRICTION_TENDON, i, 0, tendon_dofs(mjm, i), mjm.tendon_solref_fri[i],
            mjm.tendon_solimp_fri[i], float(mjm.tendon_invweight0[i]),
            frictionloss=float(mjm.tendon_frictionloss[i]), tendon=(i, 1.0),
        )
        for i in range(mjm.ntendon)
        if mjm.tendon_frictionloss[i] > 0 and tendon_dofs(mjm, i)
    ]  # fmt: skip


def _friction_mass(mjm: mujoco.MjModel, rows: list[Row]) -> Part:
    """Mass of the friction losses, which does not depend on the state: they have no position."""
    solref, solimp, margin, invweight = _parameters(rows)
    imp = _constants(mjm, solref, solimp, margin, invweight)["imp0"]
    return {}, dict(friction_D=items(1.0 / np.maximum(MINVAL, (1.0 - imp) / imp * invweight)))


def _limit_rows(mjm: mujoco.MjModel) -> list[Row]:
    """Limits of joints, then of tendons; a ball has one, any other both sides."""
    if disabled(mjm, DisableBit.LIMIT | DisableBit.CONSTRAINT):
        return []
    joints = [j for j in range(mjm.njnt) if mjm.jnt_limited[j] and mjm.jnt_type[j] != JointType.FREE]
    tendons = [t for t in range(mjm.ntendon) if mjm.tendon_limited[t] and tendon_dofs(mjm, t)]
    rows = [row for j in joints for row in _joint_limits(mjm, j)]
    return rows + [
        Row(
            ConstraintType.LIMIT_TENDON, t, side, tendon_dofs(mjm, t), mjm.tendon_solref_lim[t],
            mjm.tendon_solimp_lim[t], float(mjm.tendon_invweight0[t]), float(mjm.tendon_margin[t]),
            tendon=(t, 1.0 - 2.0 * side),
        )
        for t in tendons
        for side in (0, 1)
    ]  # fmt: skip


def _joint_limits(mjm: mujoco.MjModel, j: int) -> list[Row]:
    first = int(mjm.jnt_dofadr[j])
    shared = (
        mjm.jnt_solref[j],
        mjm.jnt_solimp[j],
        float(mjm.dof_invweight0[first]),
        float(mjm.jnt_margin[j]),
    )
    if mjm.jnt_type[j] == JointType.BALL:
        quat = [i for i in range(mjm.njnt) if mjm.jnt_type[i] in QUAT_JOINTS]
        dofs = (first, first + 1, first + 2)
        return [Row(ConstraintType.LIMIT_JOINT, j, 0, dofs, *shared, ball=quat.index(j))]
    return [
        Row(ConstraintType.LIMIT_JOINT, j, side, (first,), *shared, constant={first: 1.0 - 2.0 * side})
        for side in (0, 1)
    ]


def _limit_values(mjm: mujoco.MjModel, rows: list[Row], nquat: int) -> Part:
    """How far a limit is away: from qpos, the turn of a ball, or the length of a tendon."""
    n = len(rows)
    qpos, length = np.zeros((n, mjm.nq)), np.zeros((n, mjm.ntendon))
    offset = np.zeros(n)
    for i, row in enumerate(rows):
        side = 1.0 - 2.0 * row.part
        if row.type == ConstraintType.LIMIT_TENDON:
            lower, upper = mjm.tendon_range[row.owner]
            length[i, row.owner] = side
        else:
            lower, upper = mjm.jnt_range[row.owner]
        if row.type == ConstraintType.LIMIT_JOINT and row.ball < 0:
            qpos[i, mjm.jnt_qposadr[row.owner]] = side
        offset[i] = max(lower, upper) if row.ball >= 0 else (upper if row.part else -lower)
    static = dict(joint_limit=bool(qpos.any()), tendon_limit=bool(length.any()))
    return static, dict(
        limit_qpos=Pattern.of_matrix(qpos),
        limit_length=Pattern.of_matrix(length),
        limit_offset=items(offset),
        limit_ball=select([row.ball for row in rows], nquat),
    )


def contacts(mjm: mujoco.MjModel) -> Part:
    """Contact slots in C's order, the pair groups that fill them, and the rows they give."""
    pairs = geom_pairs(mjm)
    groups, arrays, found = _pair_groups(mjm, pairs)
    listed = contact_slots(pairs)
    slots = [slot.pair for slot in listed]
    dims = [p.condim for p in slots]
    elliptic = mjm.opt.cone == ConeType.ELLIPTIC
    nrow = [dim if elliptic or dim == 1 else 2 * (dim - 1) for dim in dims]
    address = np.concatenate([[0], np.cumsum(nrow)]).astype(int)

    body1 = mjm.geom_bodyid[[p.geom1 for p in slots]] if slots else np.zeros(0, int)
    body2 = mjm.geom_bodyid[[p.geom2 for p in slots]] if slots else np.zeros(0, int)
    friction = np.array([p.friction for p in slots]).reshape(len(slots), 5)
    owner = np.repeat(np.arange(len(slots)), nrow).astype(int)  # the contact of each row
    static: dict[str, Any] = dict(
        nconmax=len(slots),
        pair_groups=groups,
        contact_sides=_contact_sides(mjm, body1, body2),
        contact_place=tuple(slot.place for slot in listed),
        contact_geom=tuple((p.geom1, p.geom2) for p in slots),
        contact_dim=tuple(dims),
        contact_efc_address=tuple(int(a) for a in address[:-1]),
        nefc_contact=int(address[-1]),
    )
    arrays |= dict(
        contact_row=select(owner, len(slots)),
        contact_bodies=select([*body1, *body2], mjm.nbody),
        contact_roots=select([*mjm.body_rootid[body1], *mjm.body_rootid[body2]], mjm.nbody),
        contact_friction=items(friction),
        # A contact of two fixed bodies is listed, but has no rows: no distance is below its threshold.
        contact_threshold=items(np.array([_threshold(p) for p in slots])),
    )
    values, more = _found(found, [slot.place for slot in listed])
    static |= values
    arrays |= more
    tran = mjm.body_invweight0[body1, 0] + mjm.body_invweight0[body2, 0]
    arrays |= _elliptic_rows(mjm, dims, friction) if elliptic else _pyramid_rows(dims, friction)
    invweight = tran if elliptic else _pyramid_invweight(mjm, dims, friction[:, 0], tran)
    solref = np.array([p.solref for p in slots]).reshape(-1, 2)
    solimp = np.array([p.solimp for p in slots]).reshape(-1, 5)
    margin = np.array([p.margin for p in slots])
    powers, more = _impedance(mjm, "contact", solref, solimp, margin, invweight)
    if not elliptic:
        more |= _pyramid_floor(mjm, dims, friction[:, 0], tran)
    arrays |= dict(contact_row_damping=items(_contact_damping(mjm, slots, nrow, elliptic)))
    static |= powers | dict(moving_surface=_moving_surface(mjm, slots))
    arrays |= more | _surfaces(mjm, slots, elliptic)
    values, more = _adhesion(mjm, listed, nrow, static["contact_sides"])
    return static | values, arrays | more


def _pair_groups(mjm: mujoco.MjModel, pairs: tuple[GeomPair, ...]) -> tuple[tuple, dict[str, Any], list]:
    """The kinds of pairs and what their colliders need; of each possible contact the rows of what is found.

    The colliders leave, kind by kind: distance, position and normal of all first contacts of the pairs, of all second
    ones; kinds of one frame leave the normal only once and behind all else, then the hint.
    """
    groups, arrays, geoms = [], {}, []
    rows_of: dict[int, list[list[int]]] = {}  # by pair
    start = 0
    for kind in sorted({(p.type1, p.type2) for p in pairs}):
        members = [i for i, p in enumerate(pairs) if (p.type1, p.type2) == kind]
        name, n, count = f"pair{len(groups)}", len(members), MAX_CONTACTS[kind]
        groups.append((*kind, name, n))
        arrays |= _pair_group(mjm, name, [pairs[i] for i in members])
        geoms += [pairs[i].geom1 for i in members] + [pairs[i].geom2 for i in members]
        own = 4 if kind in ONE_FRAME else 7
        shared = start + count * own * n
        for at, i in enumerate(members):
            firsts = [start + k * own * n + at for k in range(count)]
            frame = range(shared + at, shared + 6 * n, n) if kind in ONE_FRAME else ()
            rows_of[i] = [[*range(first, first + own * n, n), *frame] for first in firsts]
        start = shared + (6 * n if kind in ONE_FRAME else 0)
    arrays["pair_geoms"] = select(geoms, mjm.ngeom)
    return tuple(groups), arrays, [rows for i in range(len(pairs)) for rows in rows_of[i]]


def _found(rows: list[list[int]], places: list[int]) -> Part:
    """What each contact has of what is found: distance, position, normal, and a hint where there is one."""
    width, n = max(map(len, rows), default=7), len(places)
    entries = [(k * n + slot, row, 1) for slot, at in enumerate(places) for k, row in enumerate(rows[at])]
    size = 1 + max((row for some in rows for row in some), default=-1)
    hintless = np.array([len(rows[at]) == 7 for at in places])
    return dict(contact_hinted=width > 7), dict(
        contact_found=Pattern(entries, (width * n, size)), contact_hintless=items(hintless)
    )


def _threshold(pair: GeomPair) -> float:
    """Below this distance a contact that is listed has rows; of two geoms that cannot move apart, never."""
    if pair.fixed:
        return -np.inf
    return np.inf if pair.adhesion else pair.margin


def _adhesion(mjm: mujoco.MjModel, slots: list[Slot], nrow: list[int], sides: tuple[tuple, ...]) -> Part:
    """Adhesion of each contact, its share for each row, where contacts in the gap are, and the pulls.

    Without ``flg_adhesion``, as in a model edited after it was compiled, C lists contacts by their adhesion, but has
    no force of it.
    """
    adhesion = np.array([slot.pair.adhesion for slot in slots])
    static: dict[str, Any] = dict(
        adhesive=bool(mjm.flg_adhesion and adhesion.any()),
        split_contacts=len({slot.place for slot in slots}) < len(slots),
    )
    arrays: dict[str, Any] = dict(contact_adhesion=items(adhesion))
    if static["adhesive"]:
        shares = np.ones(len(slots)) if mjm.opt.cone == ConeType.ELLIPTIC else np.array(nrow)
        arrays |= dict(contact_bias=items(adhesion / shares))
    if static["split_contacts"]:
        arrays |= dict(
            contact_nearest=items(np.array([slot.nearest for slot in slots])),
            contact_farthest=items(np.array([slot.farthest for slot in slots])),
        )
    values, more = _pulls(mjm, slots, sides)
    return static | values, arrays | more


def _pulls(mjm: mujoco.MjModel, slots: list[Slot], sides: tuple[tuple, ...]) -> Part:
    """Forces of adhesion: each side of a contact about its root. They go with the passive forces."""
    off = disabled(mjm, DisableBit.SPRING) and disabled(mjm, DisableBit.DAMPER)
    if off or not mjm.flg_adhesion:
        return dict(nadhesive=0), {}
    pairs = [slot.pair for slot in slots]
    pulling = [c for c, pair in enumerate(pairs) if pair.adhesion and not pair.fixed]
    pulls = [(c, root, columns) for c in pulling for root, columns in sides[c]]
    dofs = [(dof, i, -sign) for i, (_, _, columns) in enumerate(pulls) for dof, sign in columns]
    return dict(nadhesive=len(pulls)), dict(
        adhesive_slot=select([c for c, _, _ in pulls], len(slots)),
        adhesive_root=select([root for _, root, _ in pulls], mjm.nbody),
        adhesive_dof=Pattern(dofs, (mjm.nv, len(pulls))),
        adhesive_force=items(np.array([pairs[c].adhesion for c, _, _ in pulls])),
    )


def _moving_surface(mjm: mujoco.MjModel, slots: list[GeomPair]) -> bool:
    """Whether a geom with friction moves its surface."""
    touching = [g for p in slots if p.condim > 1 for g in (p.geom1, p.geom2)]
    return bool(mjm.flg_surfacevel) and bool(mjm.geom_surfacevel[touching].any())


def _surfaces(mjm: mujoco.MjModel, slots: list[GeomPair], elliptic: bool) -> dict[str, Any]:
    """Surface velocities of both geoms of each contact, and the damping of its friction."""
    if not _moving_surface(mjm, slots):
        return {}
    first, second = [p.geom1 for p in slots], [p.geom2 for p in slots]
    damping = [_contact_damping(mjm, [p], [2], elliptic)[1] for p in slots]
    return dict(
        contact_geom1=select(first, mjm.ngeom),
        contact_geom2=select(second, mjm.ngeom),
        contact_surface1=items(mjm.geom_surfacevel[first]),
        contact_surface2=items(mjm.geom_surfacevel[second]),
        contact_friction_damping=items(np.array(damping)),
    )


def _contact_damping(
    mjm: mujoco.MjModel, slots: list[GeomPair], nrow: list[int], elliptic: bool
) -> np.ndarray:
    """Damping of each contact row; ``solreffriction`` is for the friction rows of elliptic cones."""
    ref, imp = [], []
    for slot, count in zip(slots, nrow, strict=True):
        for k in range(count):
            special = elliptic and k > 0 and min(slot.solreffriction) * max(slot.solreffriction) > 0
            ref.append(slot.solreffriction if special else slot.solref)
            imp.append(slot.solimp)
    solref, solimp = np.array(ref).reshape(-1, 2), np.array(imp).reshape(-1, 5)
    return _constants(mjm, solref, solimp)["damping"]


def _pyramid_invweight(mjm: mujoco.MjModel, dims: list[int], mu: np.ndarray, tran: np.ndarray) -> np.ndarray:
    """Inverse weight of all edges of a pyramid (``mj_makeImpedance``).

    R is that of the first edge times 2 mu^2, with mu the regularised friction.
    """
    edge = tran * (1.0 + mu**2) * 2.0 * mu**2 / max(MINVAL, mjm.opt.impratio)
    return np.where(np.array(dims) > 1, edge, tran)


def _pyramid_floor(mjm: mujoco.MjModel, dims: list[int], mu: np.ndarray, tran: np.ndarray) -> dict[str, Any]:
    """Least R of all edges of a pyramid, where a contact needs it: its bodies only turn about their centres of mass.

    C bounds R before it makes that of an edge of it.
    """
    if not (tran * (1.0 - mujoco.mjMAXIMP) < MINVAL).any():
        return {}
    edge = MINVAL * 2.0 * mu**2 / max(MINVAL, mjm.opt.impratio)
    return dict(contact_floor=items(np.where(np.array(dims) > 1, edge, MINVAL)))


def _pyramid_rows(dims: list[int], friction: np.ndarray) -> dict[str, Any]:
    edge = _row_edges(dims, friction)
    return dict(
        row_edge=edge[..., None],
        row_scale=np.ones((edge.shape[1], 1)),
        cone_friction=np.zeros((0, len(dims), 1)),
    )


def _elliptic_rows(mjm: mujoco.MjModel, dims: list[int], friction: np.ndarray) -> dict[str, Any]:
    """One row for each axis of a contact: D in units of the contact's, and the friction of the cone.

    ``R_1 = R_0 / impratio`` and ``R_k mu_k^2 = R_1 mu_1^2`` (``mj_makeImpedance``). ``cone_friction`` has mu of the
    regularised cone, ``mu_1 sqrt(R_1 / R_0)``, then the friction of each axis.
    """
    impratio = max(MINVAL, mjm.opt.impratio)
    axes = max(dims, default=1)
    cone = np.zeros((axes, len(dims)))
    edges, scale = [], []
    for c, (dim, mu) in enumerate(zip(dims, friction, strict=True)):
        edges += list(np.eye(axes)[:dim])
        scale += [1.0, *(impratio * (mu[: dim - 1] / mu[0]) ** 2)]
        if dim > 1:
            cone[0, c] = mu[0] / np.sqrt(impratio)
            cone[1:dim, c] = mu[: dim - 1]
    return dict(
        row_edge=np.array(edges).reshape(len(edges), axes).T[..., None],
        row_scale=items(np.array(scale)),
        cone_friction=cone[..., None],
    )


def _row_edges(dims: list[int], friction: np.ndarray) -> np.ndarray:
    """``(max condim, nrow)``: how far each row goes along each contact axis: 1 on the normal, friction on another."""
    rows = []
    for dim, mu in zip(dims, friction, strict=True):
        for k in range(1, dim):
            for side in (1.0, -1.0):
                row = np.zeros(max(dims))
                row[0], row[k] = 1.0, side * mu[k - 1]
                rows.append(row)
        if dim == 1:
            rows.append(np.eye(max(dims))[0])
    return np.array(rows).reshape(len(rows), max(dims, default=1)).T


def _contact_sides(mjm: mujoco.MjModel, body1: np.ndarray, body2: np.ndarray) -> tuple[tuple, ...]:
    """The sides of each contact: root body of the tree, and the dofs that move it with their signs.

    Where the moving bodies are of one tree, both are described about one point and one side does; dofs that move both
    cancel.
    """
    moved = moved_by(mjm)
    sides = []
    for first, second in zip(body1, body2, strict=True):
        by_root: dict[int, np.ndarray] = {}
        for body, sign in ((second, 1), (first, -1)):
            if moved[body].any():
                root = int(mjm.body_rootid[body])
                by_root[root] = by_root.get(root, 0) + sign * moved[body]
        sides.append(
            tuple(
                (root, tuple((int(j), int(row[j])) for j in np.flatnonzero(row)))
                for root, row in by_root.items()
            )
        )
    return tuple(sides)


def _pair_group(mjm: mujoco.MjModel, name: str, pairs: list[GeomPair]) -> dict[str, Any]:
    first, second = [p.geom1 for p in pairs], [p.geom2 for p in pairs]
    return {
        f"{name}_size1": items(mjm.geom_size[first]),
        f"{name}_size2": items(mjm.geom_size[second]),
        f"{name}_margin": items(np.array([p.margin + p.gap for p in pairs])),
    }


def _impedance(mjm: mujoco.MjModel, name: str, solref, solimp, margin, invweight) -> Part:
    """Constants of the impedance and reference of constraints, under names that start with ``name``."""
    constants = _constants(mjm, solref, solimp) | dict(margin=margin, invweight=invweight)
    power = constants["power"]
    static = {f"{name}_power1": bool((power == 1).all()), f"{name}_power2": bool((power == 2).all())}
    static |= {f"{name}_floor": MINVAL}
    return static, {f"{name}_{what}": items(value) for what, value in constants.items()}


def _constants(mjm: mujoco.MjModel, solref: np.ndarray, solimp: np.ndarray, *_) -> dict[str, np.ndarray]:
    """What the impedance and reference are made of, for constraints ``(n, 2)`` and ``(n, 5)``.

    MuJoCo documentation, "Computation", section "Constraint model: parameters"; the clamps are those of
    ``getsolparam`` and ``mj_makeImpedance``.
    """
    ref = np.array(solref, dtype=float).reshape(-1, 2).copy()
    imp = np.array(solimp, dtype=float).reshape(-1, 5).copy()
    mixed = (ref[:, 0] > 0) != (ref[:, 1] > 0)
    ref[mixed] = (0.02, 1.0)
    if not disabled(mjm, DisableBit.REFSAFE):
        ref[:, 0] = np.where(ref[:, 0] > 0, np.maximum(ref[:, 0], 2 * mjm.opt.timestep), ref[:, 0])
    low, high = mujoco.mjMINIMP, mujoco.mjMAXIMP
    dmin, dmax = np.clip(imp[:, 0], low, high), np.clip(imp[:, 1], low, high)
    width, mid, power = np.maximum(0, imp[:, 2]), np.clip(imp[:, 3], low, high), np.maximum(1, imp[:, 4])
    standard = ref[:, 0] > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        k = np.where(
            standard, 1 / np.maximum(MINVAL, dmax**2 * ref[:, 0] ** 2 * ref[:, 1] ** 2), -ref[:, 0] / dmax**2
        )
        b = np.where(ref[:, 1] > 0, 2 / np.maximum(MINVAL, dmax * ref[:, 0]), -ref[:, 1] / dmax)
    flat = (dmin == dmax) | (width <= MINVAL)
    return dict(
        stiffness=k,
        damping=b,
        imp0=np.where(flat, 0.5 * (dmin + dmax), dmin),
        imprange=np.where(flat, 0.0, dmax - dmin),
        invwidth=np.where(flat, 0.0, 1 / np.where(flat, 1.0, width)),
        mid=mid,
        power=power,
        rise=mid ** (1 - power),
        fall=(1 - mid) ** (1 - power),
    )
