"""Structure and arrays of the constraint rows: joint limits and contacts."""

from typing import Any

import mujoco
import numpy as np

from mujoco_torch._src.collision.pairs import GeomPair, geom_pairs
from mujoco_torch._src.enums import DisableBit, JointType
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.solver import RowKind
from mujoco_torch._src.structure.arrays import MINVAL, QUAT_JOINTS, Part, disabled, items, moved_by, select


def limits(mjm: mujoco.MjModel) -> Part:
    """Rows of joint limits in C's order: joints ascending, lower side before upper."""
    off = disabled(mjm, DisableBit.LIMIT) or disabled(mjm, DisableBit.CONSTRAINT)
    quat = [j for j in range(mjm.njnt) if mjm.jnt_type[j] in QUAT_JOINTS]
    joints = (
        []
        if off
        else [j for j in range(mjm.njnt) if mjm.jnt_limited[j] and mjm.jnt_type[j] != JointType.FREE]
    )
    qpos, offset, ball, owner, dofs, jac = [], [], [], [], [], []
    for j in joints:
        lower, upper = mjm.jnt_range[j]
        is_ball = mjm.jnt_type[j] == JointType.BALL
        for side in (1.0,) if is_ball else (1.0, -1.0):
            q = np.zeros(mjm.nq)
            if not is_ball:
                q[mjm.jnt_qposadr[j]] = side
            qpos.append(q)
            offset.append(max(lower, upper) if is_ball else -lower if side > 0 else upper)
            ball.append(quat.index(j) if is_ball else -1)
            owner.append(j)
            # A ball's axis is made in the step; a scalar joint's is the side.
            first = int(mjm.jnt_dofadr[j])
            dofs.append((first, first + 1, first + 2) if is_ball else (first,))
            jac += [0.0] * 3 if is_ball else [side]
    nl = len(owner)
    # Where a ball's values stand among the components of all axes, one after the other.
    value = [k * nl + row if len(at) > 1 else -1 for row, at in enumerate(dofs) for k in range(len(at))]
    invweight = mjm.dof_invweight0[mjm.jnt_dofadr[owner]] if owner else np.zeros(0)
    static = dict(
        nl=nl,
        ball_limit=any(q >= 0 for q in ball),
        limit_joint=tuple(int(j) for j in owner),
        given_kind=(RowKind.LIMIT,) * nl,
        given_dofs=tuple(dofs),
    )
    arrays = dict(
        limit_qpos=Pattern.of_matrix(np.array(qpos).reshape(nl, mjm.nq)),
        limit_jac=np.array(jac).reshape(-1, 1),
        limit_value=select(value, 3 * nl),
        limit_offset=np.array(offset).reshape(nl, 1),
        limit_ball=select(ball, len(quat)),
    )
    powers, more = _impedance(
        mjm, "limit", mjm.jnt_solref[owner], mjm.jnt_solimp[owner], mjm.jnt_margin[owner], invweight
    )
    return static | powers, arrays | more


def contacts(mjm: mujoco.MjModel) -> Part:
    """Contact slots in C's order, the pair groups that fill them, and the rows they give."""
    pairs = geom_pairs(mjm)
    capacity = [p.maxcon or 0 for p in pairs]  # a pair without a collider has been refused
    kinds = sorted({(p.type1, p.type2) for p in pairs})
    groups, runs, arrays = [], [], {}
    start_of: dict[int, int] = {}  # first slot of a pair in group order
    nconmax = 0
    for kind in kinds:
        members = [i for i, p in enumerate(pairs) if (p.type1, p.type2) == kind]
        for i in members:
            start_of[i] = nconmax
            nconmax += capacity[i]
        name = f"pair{len(groups)}"
        groups.append((kind[0], kind[1], name, len(members)))
        arrays |= _pair_group(mjm, name, [pairs[i] for i in members])
    for i, count in enumerate(capacity):  # C's order as runs of slots in group order
        lo, hi = start_of[i], start_of[i] + count
        if runs and runs[-1][1] == lo:
            runs[-1] = (runs[-1][0], hi)
        else:
            runs.append((lo, hi))

    slots = [p for p, count in zip(pairs, capacity, strict=True) for _ in range(count)]
    dims = [p.condim for p in slots]
    nrow = [1 if dim == 1 else 2 * (dim - 1) for dim in dims]
    address = np.concatenate([[0], np.cumsum(nrow)]).astype(int)

    body1 = mjm.geom_bodyid[[p.geom1 for p in slots]] if slots else np.zeros(0, int)
    body2 = mjm.geom_bodyid[[p.geom2 for p in slots]] if slots else np.zeros(0, int)
    tran = mjm.body_invweight0[body1, 0] + mjm.body_invweight0[body2, 0]
    friction = np.array([p.friction for p in slots]).reshape(len(slots), 5)
    frictional = np.array(dims) > 1
    # Pyramid: R is that of the first edge times 2 mu^2, with mu the regularised friction (mj_makeImpedance).
    mu = friction[:, 0]
    edge = tran * (1.0 + mu**2) * 2.0 * mu**2 / max(MINVAL, mjm.opt.impratio)
    invweight = np.where(frictional, edge, tran)
    owner = np.repeat(np.arange(len(slots)), nrow).astype(int)  # the contact of each row
    static = dict(
        nconmax=nconmax,
        pair_groups=tuple(groups),
        slot_runs=tuple(runs),
        contact_sides=_contact_sides(mjm, body1, body2),
        contact_geom=tuple((p.geom1, p.geom2) for p in slots),
        contact_dim=tuple(dims),
        contact_efc_address=tuple(int(a) for a in address[:-1]),
        nefc_contact=int(address[-1]),
    )
    arrays |= dict(
        contact_row=select(owner, len(slots)),
        contact_body1=select(body1, mjm.nbody),
        contact_body2=select(body2, mjm.nbody),
        contact_root1=select(mjm.body_rootid[body1], mjm.nbody),
        contact_root2=select(mjm.body_rootid[body2], mjm.nbody),
        contact_friction=items(friction),
        row_edge=_row_edges(dims, friction)[..., None],
        row_scale=np.ones((int(address[-1]), 1)),
        cone_friction=np.zeros((0, nconmax, 1)),
        # A contact of two fixed bodies is listed, but has no rows: no distance is below its threshold.
        contact_threshold=items(np.array([-np.inf if p.fixed else p.margin for p in slots])),
    )
    solref = np.array([p.solref for p in slots]).reshape(-1, 2)
    solimp = np.array([p.solimp for p in slots]).reshape(-1, 5)
    margin = np.array([p.margin for p in slots])
    powers, more = _impedance(mjm, "contact", solref, solimp, margin, invweight)
    return static | powers, arrays | more


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
        f"{name}_geoms": select(first + second, mjm.ngeom),
        f"{name}_size1": items(mjm.geom_size[first]),
        f"{name}_size2": items(mjm.geom_size[second]),
        f"{name}_margin": items(np.array([p.margin + p.gap for p in pairs])),
    }


def _impedance(mjm, name: str, solref, solimp, margin, invweight) -> Part:
    """Constants of the impedance and reference of constraint rows.

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
    start = np.where(flat, 0.5 * (dmin + dmax), dmin)
    static = {f"{name}_power1": bool((power == 1).all()), f"{name}_power2": bool((power == 2).all())}
    return static, {
        f"{name}_stiffness": k[:, None],
        f"{name}_damping": b[:, None],
        f"{name}_margin": np.asarray(margin, float).reshape(-1, 1),
        f"{name}_invweight": np.asarray(invweight, float).reshape(-1, 1),
        f"{name}_imp0": start[:, None],
        f"{name}_imprange": np.where(flat, 0.0, dmax - dmin)[:, None],
        f"{name}_invwidth": np.where(flat, 0.0, 1 / np.where(flat, 1.0, width))[:, None],
        f"{name}_mid": mid[:, None],
        f"{name}_power": power[:, None],
        f"{name}_rise": (mid ** (1 - power))[:, None],
        f"{name}_fall": ((1 - mid) ** (1 - power))[:, None],
    }
