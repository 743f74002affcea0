"""Structure and arrays of how forces change with velocity, for the integrators that are implicit in it."""

import mujoco
import numpy as np

from mujoco_torch._src.enums import (
    DisableBit,
    GainType,
    IntegratorType,
    JointType,
    TrnType,
)
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.structure.actuation import actuators, disabled_actuators
from mujoco_torch._src.structure.arrays import Part, disabled, items, moved_by, select
from mujoco_torch._src.structure.bodies import dofs
from mujoco_torch._src.structure.passive import ellipsoids
from mujoco_torch._src.structure.transmission import transmissions

IMPLICIT = (IntegratorType.IMPLICIT, IntegratorType.IMPLICITFAST)
JOINT_TRANSMISSIONS = (TrnType.JOINT, TrnType.JOINTINPARENT)


def derivatives(mjm: mujoco.MjModel) -> Part:
    """For the implicit integrators: what of the smooth forces depends on velocity.

    The derivative has the elements of C's ``qDeriv``: where one dof is the other or moves with it. They are held as a
    lower triangle, row by row, and where it is not symmetric an upper triangle of the same order. The inertia of a
    *simple* body has fewer elements.
    """
    if mjm.opt.integrator not in IMPLICIT:
        return {}, {}
    lower = [
        (i, int(j))
        for i in range(mjm.nv)
        for j in mjm.D_colind[mjm.D_rowadr[i] : mjm.D_rowadr[i] + mjm.D_rownnz[i]]
        if j <= i
    ]
    index = {pair: e for e, pair in enumerate(lower)}
    inertia = [
        (i, int(j))
        for i in range(mjm.nv)
        for j in mjm.M_colind[mjm.M_rowadr[i] : mjm.M_rowadr[i] + mjm.M_rownnz[i]]
    ]
    static = dict(rate_full=len(lower) == len(inertia))
    arrays = dict(
        rate_row=select([i for i, _ in lower], mjm.nv),
        rate_col=select([j for _, j in lower], mjm.nv),
        rate_diagonal=select([i if i == j else -1 for i, j in lower], mjm.nv),
        rate_inertia=select([index[pair] for pair in inertia], len(lower)),
    )
    integrator = _bias if mjm.opt.integrator == IntegratorType.IMPLICIT else _lone_bodies
    for values, more in (_actuators(mjm, index), integrator(mjm, index)):
        static |= values
        arrays |= more
    return static, arrays


def _actuators(mjm: mujoco.MjModel, index: dict) -> Part:
    """Which outputs change with their velocity, and the products of moments that carry it to the dofs."""
    forces = actuators(mjm)[1]
    moving = (forces["actuator_gain"][2] != 0) | (forces["actuator_bias"][2] != 0)
    owner = np.repeat(np.arange(mjm.nactuator), mjm.actuator_outnum)  # the actuator of each output
    motor = (mjm.actuator_gaintype == GainType.DCMOTOR)[owner]
    curved = motor | (mjm.actuator_gaintype == GainType.MUSCLE)[owner]
    moving = moving[:, 0] | (curved & ~disabled_actuators(mjm)[owner])
    joint, tendon = np.full(len(owner), -1), np.full(len(owner), -1)  # those of limited force
    for o, u in enumerate(owner):
        target = mjm.actuator_trnid[u, 0]
        if mjm.actuator_trntype[u] in JOINT_TRANSMISSIONS and mjm.jnt_actfrclimited[target]:
            joint[o] = mjm.jnt_dofadr[target]
        if mjm.actuator_trntype[u] == TrnType.TENDON and mjm.tendon_actfrclimited[target]:
            tendon[o] = target
    row, col = (_columns(transmissions(mjm)[1][name]) for name in ("moment_row", "moment_col"))
    elements = [e for e, o in enumerate(row) if moving[o]]
    pairs = [
        (e, f, index[col[e], col[f]])
        for e in elements
        for f in elements
        if row[e] == row[f] and (col[e], col[f]) in index
    ]
    static = dict(
        actuator_rates=bool(pairs) and not disabled(mjm, DisableBit.ACTUATION),
        gain_rates=bool((forces["actuator_gain"][2] != 0).any()) or bool(curved.any()),
        joint_saturation=bool((joint >= 0).any()),
        tendon_saturation=bool((tendon >= 0).any()),
    )
    arrays = dict(
        rate_joint=select(joint, mjm.nv),
        rate_tendon=select(tendon, mjm.ntendon),
        rate_tendonmin=items(mjm.tendon_actfrcrange[:, 0]),
        rate_tendonmax=items(mjm.tendon_actfrcrange[:, 1]),
        rate_motor=items(motor),
        rate_left=select([e for e, _, _ in pairs], len(row)),
        rate_right=select([f for _, f, _ in pairs], len(row)),
        rate_sum=Pattern([(place, p, 1) for p, (_, _, place) in enumerate(pairs)], (len(index), len(pairs))),
    )
    return static, arrays


def _columns(selection: Pattern) -> list[int]:
    """What each row of a selection picks."""
    return [j for _, j, _ in selection.entries]


def _bias(mjm: mujoco.MjModel, index: dict) -> Part:
    """For ``implicit``: dofs that a dof does not carry along, and places of both triangles in a dense matrix."""
    nv, n = mjm.nv, len(index)
    carried = np.zeros((nv, nv))  # 1 if the axis of dof j turns with dof k
    for row, k, _ in dofs(mjm)[1]["velocity_dof"].entries:
        if (j := row - mjm.nbody) < 0:
            continue
        carried[j, k] = 1.0
    on_path = moved_by(mjm)[mjm.dof_bodyid] if nv else np.zeros((0, 0))
    dense = [(i * nv + j, e, 1) for (i, j), e in index.items()]
    dense += [(j * nv + i, n + e, 1) for (i, j), e in index.items() if i != j]
    arrays = dict(
        rate_still=Pattern.of_matrix(on_path * (1.0 - carried.T)),
        rate_dense=Pattern(dense, (nv * nv, 2 * n)),
    )
    return {}, arrays


def _lone_bodies(mjm: mujoco.MjModel, index: dict) -> Part:
    """For ``implicitfast``: free bodies that carry no joint, and their 6 x 6 blocks."""
    free = np.flatnonzero(mjm.jnt_type == JointType.FREE)
    trees = mjm.body_treeid[mjm.jnt_bodyid[free]]
    lone = [j for j, tree in zip(free, trees, strict=True) if mjm.tree_dofnum[tree] == 6]
    first = [int(mjm.jnt_dofadr[j]) for j in lone]
    body = [int(mjm.jnt_bodyid[j]) for j in lone]
    in_medium = [mjm.body_rootid[mjm.geom_bodyid[g]] in body for g in ellipsoids(mjm)]
    n, skew = len(index), any(in_medium)
    blocks = [
        index[a + max(r, c), a + min(r, c)] + (n if skew and c > r else 0)
        for half in ((0, 0), (0, 3), (3, 0), (3, 3))
        for r in range(half[0], half[0] + 3)
        for c in range(half[1], half[1] + 3)
        for a in first
    ]
    arrays = dict(
        # The second triangle is there if it differs from the first.
        lone_block=select(blocks, 2 * n if skew else n),
        lone_ellipsoid=items(np.array(in_medium, float)),
        lone_dof=select([a + k for k in range(6) for a in first], mjm.nv),
        lone_turn=select([a + k for k in (3, 4, 5) for a in first], mjm.nv),
        lone_slide=select([a + k for k in range(3) for a in first], mjm.nv),
        lone_body=select(body, mjm.nbody),
    )
    return dict(nlone=len(lone), lone_skew=skew), arrays
