"""Structure and arrays of what the actuators act on.

An actuator has one force output, or three on a relative orientation; lengths and moments have one row per output.
A moment comes from a joint, a tendon, or *pushes*: what a unit of force of the output pushes some body with, a force
and torque at a point. A push moves the dofs that move its body, but not those that move its partner alike (the body
that takes the reaction): these cancel.
"""

from typing import NamedTuple

import mujoco
import numpy as np

from mujoco_torch._src.collision.pairs import GeomPair, contact_slots, geom_pairs
from mujoco_torch._src.enums import BiasType, CtrlInput, DynType, GainType, JointType, TrnType
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.structure.arrays import QUAT_JOINTS, SCALAR_JOINTS, Part, items, moved_by, select

_ON_JOINT = (TrnType.JOINT, TrnType.JOINTINPARENT)
_SETPOINT_DYNAMICS = (DynType.NONE, DynType.INTEGRATOR, DynType.FILTER, DynType.FILTEREXACT)
_WORLD = 0  # it has no dofs, so as a partner it takes none away


class _Push(NamedTuple):
    """A force and torque on a body."""

    output: int
    """row of the moments"""
    body: int
    partner: int


class _Joints(NamedTuple):
    """What outputs on joints give, by output."""

    length: np.ndarray
    """``(nout, nq)``"""
    moment: np.ndarray
    """``(nout, nv)``"""
    turned: np.ndarray
    """gear given in the parent frame, to be turned into the joint's, ``(nout, 3)``"""
    place: np.ndarray
    """where the turned gear goes, ``(3, nout, nv)``"""
    quat_of: list[int]
    """which ball or free joint, or -1"""
    ball: np.ndarray
    """1 where a ball's rotation vector gives the length, ``(nout,)``"""


def transmissions(mjm: mujoco.MjModel) -> Part:
    """Lengths and moments of the actuators."""
    nout, nv = mjm.nout, mjm.nv
    joints = _on_joints(mjm)
    tendon_length, tendon_moment = _on_tendons(mjm)
    static, arrays, pushes = {}, {}, []
    for values, more, found in (_on_sites(mjm), _on_cranks(mjm), _on_contacts(mjm)):
        static |= values
        arrays |= more
        pushes += found
    pushed = _pushed_dofs(mjm, pushes)

    # The moments' elements that can be other than zero, row by row.
    by_output = np.zeros((nout, nv), bool)
    for push, dofs in zip(pushes, pushed, strict=True):
        by_output[push.output] |= dofs
    elements = np.argwhere((joints.moment != 0) | joints.place.any(0) | tendon_moment.any(2) | by_output)
    row, col = elements.T
    index = {(int(o), int(dof)): e for e, (o, dof) in enumerate(elements)}
    quat = [j for j in range(mjm.njnt) if mjm.jnt_type[j] in QUAT_JOINTS]
    turned = [(index[o, dof], k * nout + o, 1) for k, o, dof in np.argwhere(joints.place)]
    ten_J = [
        (index[o, dof], t * nv + dof, tendon_moment[o, dof, t]) for o, dof, t in np.argwhere(tendon_moment)
    ]
    static |= dict(
        ball_actuator=any(q >= 0 for q in joints.quat_of),
        parent_gear=bool(joints.turned.any()),
        tendon_actuator=bool(tendon_length.any()),
        npush=sum(bool(dofs.any()) for dofs in pushed),
    )
    arrays |= dict(
        actuator_qpos=joints.length,
        moment0=joints.moment[row, col][:, None],
        moment_row=select(row, nout),
        moment_col=select(col, nv),
        moment_dense=select(row * nv + col, nout * nv).T,
        moment_place=Pattern(turned, (len(elements), 3 * nout)),
        moment_gear=_ball_gears(mjm, joints.quat_of, quat, index),
        actuator_quat=select(joints.quat_of, len(quat)),
        actuator_parentgear=items(joints.turned.reshape(nout, 3)),
        actuator_ball=items(joints.ball),
        actuator_tendon=Pattern.of_matrix(tendon_length),
        moment_tendon=Pattern(ten_J, (len(elements), mjm.ntendon * nv)),
    )
    arrays |= _push_elements(mjm, pushes, pushed, index)
    return static, arrays


def _outputs(mjm: mujoco.MjModel, i: int) -> range:
    """The force outputs of an actuator."""
    return range(mjm.actuator_outadr[i], mjm.actuator_outadr[i] + mjm.actuator_outnum[i])


def _of_type(mjm: mujoco.MjModel, *kinds: TrnType) -> list[int]:
    """The actuators with one of these transmissions."""
    return np.flatnonzero(np.isin(mjm.actuator_trntype, kinds)).tolist()


def _so3_on_site(mjm: mujoco.MjModel, i: int) -> bool:
    """Whether an orientation is that of a site in a reference site, else it is that of a ball joint."""
    return bool(mjm.actuator_trntype[i] == TrnType.SO3 and mjm.actuator_trnid[i, 1] >= 0)


def _on_joints(mjm: mujoco.MjModel) -> _Joints:
    nout, nv = mjm.nout, mjm.nv
    quat = [j for j in range(mjm.njnt) if mjm.jnt_type[j] in QUAT_JOINTS]
    found = _Joints(
        np.zeros((nout, mjm.nq)), np.zeros((nout, nv)), np.zeros((nout, 3)), np.zeros((3, nout, nv)), [-1] * nout,
        np.zeros(nout),
    )  # fmt: skip
    for i in _of_type(mjm, *_ON_JOINT, TrnType.SO3):
        if _so3_on_site(mjm, i):
            continue
        so3 = mjm.actuator_trntype[i] == TrnType.SO3
        for k, o in enumerate(_outputs(mjm, i)):
            gear = np.eye(6)[k] if so3 else mjm.actuator_gear[o]
            j = mjm.actuator_trnid[i, 0]
            dof, kind = mjm.jnt_dofadr[j], mjm.jnt_type[j]
            if kind in SCALAR_JOINTS:
                found.moment[o, dof] = found.length[o, mjm.jnt_qposadr[j]] = gear[0]
                continue
            found.quat_of[o] = quat.index(j)
            turn, dof_turn = (gear[3:6], dof + 3) if kind == JointType.FREE else (gear[:3], dof)
            if kind == JointType.FREE:
                found.moment[o, dof : dof + 3] = gear[:3]
            else:
                found.ball[o] = 1.0
            if mjm.actuator_trntype[i] == TrnType.JOINTINPARENT:
                found.turned[o] = turn
                found.place[np.arange(3), o, dof_turn + np.arange(3)] = 1.0
            else:
                found.moment[o, dof_turn : dof_turn + 3] = turn
    return found


def _ball_gears(mjm: mujoco.MjModel, quat_of: list[int], quat: list[int], index: dict) -> Pattern:
    """Selects the moments of an output at the turning dofs of the ball or free joint that it drives."""
    entries = []
    for o, q in enumerate(quat_of):
        if q < 0:
            continue
        dof = mjm.jnt_dofadr[quat[q]] + (3 if mjm.jnt_type[quat[q]] == JointType.FREE else 0)
        entries += [(k * mjm.nout + o, index[o, dof + k], 1) for k in range(3) if (o, dof + k) in index]
    return Pattern(entries, (3 * mjm.nout, len(index)))


def _on_tendons(mjm: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """Gears of the outputs on tendons, ``(nout, ntendon)``, and of each element of ten_J, ``(nout, nv, ntendon)``."""
    length = np.zeros((mjm.nout, mjm.ntendon))
    moment = np.zeros((mjm.nout, mjm.nv, mjm.ntendon))
    for i in _of_type(mjm, TrnType.TENDON):
        o, t = mjm.actuator_outadr[i], mjm.actuator_trnid[i, 0]
        start, count = mjm.ten_J_rowadr[t], mjm.ten_J_rownnz[t]
        length[o, t] = mjm.actuator_gear[o, 0]
        moment[o, mjm.ten_J_colind[start : start + count], t] = mjm.actuator_gear[o, 0]
    return length, moment


def _on_sites(mjm: mujoco.MjModel) -> tuple[dict, dict, list[_Push]]:
    """Forces and torques at a site along the axes of a frame, with the reaction at the reference site if there is one.

    The frame is that of the reference site, or of the site itself for an orientation and where there is no reference.
    """
    sites, frames, gears, pushes, references = [], [], [], [], []
    for i in _of_type(mjm, TrnType.SITE, TrnType.SO3):
        so3 = mjm.actuator_trntype[i] == TrnType.SO3
        if so3 and not _so3_on_site(mjm, i):
            continue
        site, ref = (int(s) for s in mjm.actuator_trnid[i])
        for k, o in enumerate(_outputs(mjm, i)):
            gear = np.eye(6)[3 + k] if so3 else mjm.actuator_gear[o]
            frame = site if so3 or ref < 0 else ref
            body, partner = int(mjm.site_bodyid[site]), int(mjm.site_bodyid[ref]) if ref >= 0 else _WORLD
            ends = [(site, gear, body, partner)]
            if ref >= 0:
                references.append((o, site, ref, gear))
                ends.append((ref, -gear, partner, body))
            for at, along, pushed, other in ends:
                sites.append(at)
                frames.append(frame)
                gears.append(along)
                pushes.append(_Push(o, pushed, other))
    gear = np.array([g for *_, g in references]).reshape(-1, 6)
    both = [s for _, s, _, _ in references] + [r for _, _, r, _ in references]
    static = dict(
        nsite_push=len(pushes),
        nsite_length=len(references),
        site_translation=bool(gear[:, :3].any()),
        site_rotation=bool(gear[:, 3:].any()),
    )
    arrays = dict(
        site_push_at=select(sites, mjm.nsite),
        site_push_frame=select(frames, mjm.nsite),
        site_push_gear=items(np.array(gears).reshape(-1, 6)),
        site_push_root=_roots(mjm, pushes),
        site_length_at=select(both, mjm.nsite),
        site_length_body=select(mjm.site_bodyid[both] if both else [], mjm.nbody),
        site_length_quat=items(mjm.site_quat[both].reshape(-1, 4)),
        site_length_gear=items(gear),
        actuator_site=select([o for o, *_ in references], mjm.nout).T,
    )
    return static, arrays, pushes


def _on_cranks(mjm: mujoco.MjModel) -> tuple[dict, dict, list[_Push]]:
    """Slider-cranks: all pushes on the crank, then all on the slider."""
    cranks = _of_type(mjm, TrnType.SLIDERCRANK)
    outputs = [int(mjm.actuator_outadr[i]) for i in cranks]
    pins, sliders = mjm.actuator_trnid[cranks].reshape(-1, 2).T
    first, second = mjm.site_bodyid[pins], mjm.site_bodyid[sliders]
    pushes = [_Push(o, int(b), int(c)) for o, b, c in zip(outputs, first, second, strict=True)]
    pushes += [_Push(push.output, push.partner, push.body) for push in pushes]
    arrays = dict(
        crank_site=select([*pins, *sliders], mjm.nsite),
        crank_slider=select(sliders, mjm.nsite),
        crank_rod=items(mjm.actuator_cranklength[cranks]),
        crank_gear=items(mjm.actuator_gear[outputs, 0]),
        crank_root=_roots(mjm, pushes),
        actuator_crank=select(outputs, mjm.nout).T,
    )
    return dict(ncrank=len(cranks)), arrays, pushes


def _on_contacts(mjm: mujoco.MjModel) -> tuple[dict, dict, list[_Push]]:
    """Adhesion: pushes at the contacts of a body, on both bodies of each."""
    actuators = _of_type(mjm, TrnType.BODY)
    pairs = geom_pairs(mjm) if actuators else ()
    slots = [slot.pair for slot in contact_slots(pairs)]
    bodies = [tuple(int(mjm.geom_bodyid[g]) for g in (pair.geom1, pair.geom2)) for pair in slots]
    moved = moved_by(mjm)
    pushes, at, signs, owner, counted = [], [], [], [], []
    for a, i in enumerate(actuators):
        for slot, (first, second) in enumerate(bodies):
            if mjm.actuator_trnid[i, 0] not in (first, second):
                continue
            counted.append((a, slot, 1))
            for body, partner, sign in ((second, first, -1.0), (first, second, 1.0)):
                if (moved[body] > moved[partner]).any():
                    pushes.append(_Push(int(mjm.actuator_outadr[i]), body, partner))
                    at.append(slot)
                    signs.append(sign)
                    owner.append(a)
    arrays = dict(
        adhesion_slot=Pattern(counted, (len(actuators), len(slots))),
        adhesion_nearest=items(np.array([_nearest(pair) for pair in slots])),
        adhesion_push_slot=select(at, len(slots)),
        adhesion_push_sign=items(np.array(signs)),
        adhesion_push_actuator=select(owner, len(actuators)),
        adhesion_root=_roots(mjm, pushes),
    )
    return dict(nadhesion_push=len(pushes)), arrays, pushes


def _nearest(pair: GeomPair) -> float:
    """From this distance on C counts a contact; of two bodies that cannot move against each other, only in the gap.

    If the geoms hold each other by adhesion of their own, a contact in the gap is like a nearer one.
    """
    if not pair.fixed:
        return -np.inf
    return np.inf if pair.adhesion else pair.margin


def _roots(mjm: mujoco.MjModel, pushes: list[_Push]) -> Pattern:
    """The root of the tree of each pushed body."""
    return select([mjm.body_rootid[push.body] for push in pushes], mjm.nbody)


def _pushed_dofs(mjm: mujoco.MjModel, pushes: list[_Push]) -> list[np.ndarray]:
    """The dofs that each push moves, ``(nv,)`` booleans."""
    moved = moved_by(mjm)
    return [moved[push.body] > moved[push.partner] for push in pushes]


def _push_elements(mjm: mujoco.MjModel, pushes: list[_Push], pushed: list[np.ndarray], index: dict) -> dict:
    """The elements of the moments that pushes give: dof, place among all elements, pushes that add up."""
    of = [
        (index[push.output, int(dof)], p)
        for p, push in enumerate(pushes)
        for dof in np.flatnonzero(pushed[p])
    ]
    elements = sorted({e for e, _ in of})
    order = {e: k for k, e in enumerate(elements)}
    dof = {e: v for (_, v), e in index.items()}
    return dict(
        push_dof=select([dof[e] for e in elements], mjm.nv),
        push_place=select(elements, len(index)).T,
        push_sum=Pattern([(order[e], p, 1) for e, p in of], (len(elements), len(pushes))),
    )


def setpoint_periods(mjm: mujoco.MjModel) -> np.ndarray:
    """Length of a full turn for each servo of an angle on the circle, 0 for other actuators, ``(nactuator,)``.

    As in C, a servo is a PID controller with a position input, or has fixed gain, affine bias, a gain that cancels the
    bias on the length, and its control, or what integrates or filters it, as set point. Its angle is that of a ball
    joint, or of a site in a reference site by turns alone.
    """
    period = np.zeros(mjm.nactuator)
    for i in range(mjm.nactuator):
        cancels = (
            mjm.actuator_gaintype[i] == GainType.FIXED
            and mjm.actuator_biastype[i] == BiasType.AFFINE
            and mjm.actuator_gainprm[i, 0] == -mjm.actuator_biasprm[i, 1]
            and mjm.actuator_dyntype[i] in _SETPOINT_DYNAMICS
        )
        pid = mjm.actuator_gaintype[i] == GainType.PID and mjm.actuator_ctrlspec[i] & CtrlInput.POS
        if cancels or pid:
            period[i] = 2 * np.pi * np.linalg.norm(_angle_gear(mjm, i))
    return period


def _angle_gear(mjm: mujoco.MjModel, i: int) -> np.ndarray:
    """The gear of an actuator whose length is an angle on the circle, else zeros, ``(3,)``."""
    kind, (target, ref), gear = (
        mjm.actuator_trntype[i],
        mjm.actuator_trnid[i],
        mjm.actuator_gear[_outputs(mjm, i)[0]],
    )
    if kind in _ON_JOINT and mjm.jnt_type[target] == JointType.BALL:
        return gear[:3]
    if kind == TrnType.SITE and ref >= 0 and not gear[:3].any():
        return gear[3:]
    return np.zeros(3)
