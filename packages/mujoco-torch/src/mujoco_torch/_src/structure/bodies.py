"""Structure and arrays of the options, bodies, joints, dofs, and of what is fixed to bodies."""

from typing import Any

import mujoco
import numpy as np

from mujoco_torch._src.enums import CamLightType, DisableBit, JointType
from mujoco_torch._src.layout import STATE
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.structure.arrays import (
    IDENTITY,
    MINVAL,
    QUAT_JOINTS,
    SCALAR_JOINTS,
    Part,
    disabled,
    frames,
    items,
    moved_by,
    placed,
    select,
    state_value,
)
from mujoco_torch._src.structure.reflected import reflected


def options(mjm: mujoco.MjModel) -> Part:
    """Sizes, switches and solver options; time step and gravity."""
    gravity = np.zeros(3) if disabled(mjm, DisableBit.GRAVITY) else mjm.opt.gravity
    names = (
        "nq",
        "nv",
        "nu",
        "na",
        "nout",
        "nbody",
        "njnt",
        "ngeom",
        "nsite",
        "ncam",
        "nlight",
        "nkey",
        "nC",
        "nhistory",
        "nplastic",
        "neq",
        "nmocap",
        "ntendon",
        "nactuator",
    )
    static: dict[str, Any] = {name: int(getattr(mjm, name)) for name in names}
    static |= dict(
        integrator=int(mjm.opt.integrator),
        tolerance=float(mjm.opt.tolerance),
        ls_tolerance=float(mjm.opt.ls_tolerance),
        iterations=int(mjm.opt.iterations),
        ls_iterations=int(mjm.opt.ls_iterations),
        noslip_iterations=int(mjm.opt.noslip_iterations),
        noslip_tolerance=float(mjm.opt.noslip_tolerance),
        cone=int(mjm.opt.cone),
        solver=int(mjm.opt.solver),
        islands=not disabled(mjm, DisableBit.ISLAND),
        warmstart=not disabled(mjm, DisableBit.WARMSTART),
        actuation=not disabled(mjm, DisableBit.ACTUATION),
        clampctrl=not disabled(mjm, DisableBit.CLAMPCTRL),
    )
    fresh = mujoco.MjData(mjm)  # the state of a reset world
    initial = {f"initial_{name}": state_value(fresh, name) for name in STATE}
    return static, dict(timestep=np.full((1,), mjm.opt.timestep), gravity=items(gravity[None]), **initial)


def bodies(mjm: mujoco.MjModel) -> Part:
    """The tree of bodies, and their inertial properties."""
    n = mjm.nbody
    parent = mjm.body_parentid
    subtree = np.eye(n)  # subtree[a, b] = 1 if b is a or below it
    for b in range(n - 1, 0, -1):
        subtree[parent[b]] += subtree[b]
    free = np.isin(
        np.arange(n), [mjm.jnt_bodyid[j] for j in range(mjm.njnt) if mjm.jnt_type[j] == JointType.FREE]
    )
    # Neither does a mocap body start where body_pos says: the state does.
    mocap = mjm.body_mocapid >= 0
    massless = mjm.body_subtreemass < MINVAL
    proper = subtree.copy()
    proper[0] = 0.0  # C sums inertia and force down to the children of the world, not into the world
    arrays = dict(
        body_parent=select(parent, n),
        # A body with a free joint starts from the world, whatever its body_pos says; that of a mocap body is zero here.
        body_frame=frames(
            np.where(free[:, None], 0.0, mjm.body_pos), np.where(free[:, None], IDENTITY, mjm.body_quat)
        )
        * ~mocap[:, None],
        body_mocap=select(mjm.body_mocapid, mjm.nmocap),
        # One after the other, as the properties of dofs below.
        body_mass=items(mjm.body_mass),
        body_invsubtreemass=items(np.where(massless, 0.0, 1.0 / np.maximum(mjm.body_subtreemass, MINVAL))),
        body_massless=items(massless),
        body_inertia=items(mjm.body_inertia),
        body_root=select(mjm.body_rootid, n),
        body_subtree=Pattern.of_matrix(subtree),
        body_descendants=Pattern.of_matrix(proper),
    )
    return {}, arrays


def joints(mjm: mujoco.MjModel) -> Part:
    """Joint slots of the bodies, and how qpos and qvel map to them."""
    n, njnt, nq = mjm.nbody, mjm.njnt, mjm.nq
    types = mjm.jnt_type
    slot = np.arange(njnt) - mjm.body_jntadr[mjm.jnt_bodyid]  # number of the joint within its body
    nslot = int(slot.max()) + 1 if njnt else 0
    place = slot * n + mjm.jnt_bodyid  # row of the joint in slot-major, body-minor order
    quat = [j for j in range(njnt) if types[j] in QUAT_JOINTS]
    free = [j for j in range(njnt) if types[j] == JointType.FREE]
    scalar = [j for j in range(njnt) if types[j] in SCALAR_JOINTS]

    rows = nslot * n
    slot_qpos0 = np.zeros(rows)
    for j in scalar:
        slot_qpos0[place[j]] = mjm.qpos0[mjm.jnt_qposadr[j]]

    def put(values: np.ndarray, joints) -> np.ndarray:
        out = np.zeros((rows, *values.shape[1:]))
        for j in joints:
            out[place[j]] = values[j]
        return out

    quat_adr = [mjm.jnt_qposadr[j] + (3 if types[j] == JointType.FREE else 0) for j in quat]
    quat_dof = [mjm.jnt_dofadr[j] + (3 if types[j] == JointType.FREE else 0) for j in quat]
    turns = [a + k for k in range(3) for a in quat_dof]
    quat_entries = [a + k for k in range(4) for a in quat_adr]
    keep = np.ones(nq)
    keep[quat_entries] = 0.0
    qpos_dof = np.zeros((nq, mjm.nv))
    for j in scalar:
        qpos_dof[mjm.jnt_qposadr[j], mjm.jnt_dofadr[j]] = 1.0
    for j in free:
        for k in range(3):
            qpos_dof[mjm.jnt_qposadr[j] + k, mjm.jnt_dofadr[j] + k] = 1.0

    ones = np.ones(njnt)
    static = dict(nslot=nslot, nquat=len(quat), nfree=len(free))
    arrays = dict(
        slot_qpos=_slot_qpos(mjm, place, rows),
        slot_qpos0=slot_qpos0[:, None],
        # One after the other: see ``InsideModel.joined``.
        slot_pos=items(put(mjm.jnt_pos, [j for j in range(njnt) if j not in free])),
        slot_axis=items(put(mjm.jnt_axis, range(njnt))),
        slot_free=items(put(ones, free)),
        slot_hinge=items(put(ones, [j for j in scalar if types[j] == JointType.HINGE])),
        slot_slide=items(put(ones, [j for j in scalar if types[j] == JointType.SLIDE])),
        slot_noquat=items(1.0 - put(ones, quat)),
        quat_qpos=select(quat_entries, nq),
        quat_dof=select(turns, mjm.nv),
        qpos_keep=keep[:, None],
        qpos_dof=Pattern.of_matrix(qpos_dof),
        qpos_rate=Pattern.of_matrix(np.concatenate([qpos_dof, np.eye(mjm.nv)[turns]])),
        jnt_slot=select(place, rows),
        jnt_parent=select(mjm.body_parentid[mjm.jnt_bodyid], n),
    )
    return static, arrays


def _slot_qpos(mjm: mujoco.MjModel, place: np.ndarray, rows: int) -> Pattern:
    """The elements of qpos in the joint slots: of slides and hinges, quaternions, positions of free joints.

    One row for each slot, then four and three times as many, by component; none of what no joint has.
    """
    entries = []
    for j, kind in enumerate(mjm.jnt_type):
        first = int(mjm.jnt_qposadr[j])
        if kind in SCALAR_JOINTS:
            entries.append((place[j], first, 1))
        if kind in QUAT_JOINTS:
            start = first + (3 if kind == JointType.FREE else 0)
            entries += [((1 + k) * rows + place[j], start + k, 1) for k in range(4)]
        if kind == JointType.FREE:
            entries += [((5 + k) * rows + place[j], first + k, 1) for k in range(3)]
    kinds = set(mjm.jnt_type)
    size = 8 if JointType.FREE in kinds else 5 if JointType.BALL in kinds else 1
    return Pattern(entries, (size * rows, mjm.nq))


def dofs(mjm: mujoco.MjModel) -> Part:
    """Motion axes, ancestors, armature and force ranges of the dofs."""
    n, nv, njnt = mjm.nbody, mjm.nv, mjm.njnt
    jnt, body = mjm.dof_jntid, mjm.dof_bodyid
    types = mjm.jnt_type[jnt] if nv else np.zeros(0, int)
    local = np.arange(nv) - mjm.jnt_dofadr[jnt] if nv else np.zeros(0, int)

    ancestor = np.eye(nv)  # ancestor[i, j] = 1 if dof j is i or one of its ancestors
    for i in range(nv):
        if mjm.dof_parentid[i] >= 0:
            ancestor[i] += ancestor[mjm.dof_parentid[i]]

    before = ancestor - np.eye(nv)  # velocity just before dof i
    axis_const = np.zeros((nv, 3))
    turning = np.full(nv, -1)  # the body that turns about its own axis
    local_axis = np.zeros((nv, 3))
    linear = np.zeros(nv)
    scalar = np.zeros(nv)
    for i in range(nv):
        first = mjm.jnt_dofadr[jnt[i]]
        if types[i] in SCALAR_JOINTS:
            scalar[i] = 1.0
            linear[i] = types[i] == JointType.SLIDE
            continue
        translation = types[i] == JointType.FREE and local[i] < 3
        linear[i] = translation
        if translation:
            axis_const[i, local[i]] = 1.0
            before[i] = 0.0
        else:  # the three turns of a ball (or of a free joint) do not move each other
            start = first + (3 if types[i] == JointType.FREE else 0)
            before[i, start : start + 3] = 0.0
            turning[i], local_axis[i, i - start] = body[i], 1.0

    limited = mjm.jnt_actfrclimited[jnt].astype(bool) if nv else np.zeros(0, bool)
    frcrange = mjm.jnt_actfrcrange[jnt] if nv else np.zeros((0, 2))
    static = dict(
        M_rownnz=tuple(mjm.M_rownnz.tolist()),
        M_colind=tuple(mjm.M_colind.tolist()),
        dof_bodyid=tuple(mjm.dof_bodyid.tolist()),
    )
    arrays = dict(
        body_dof=Pattern.of_matrix(moved_by(mjm)),
        velocity_dof=Pattern.of_matrix(np.concatenate([moved_by(mjm), before])),
        dof_scalar=items(scalar),
        dof_linear=items(linear),
        dof_axis=items(axis_const.reshape(nv, 3)),
        dof_local_axis=items(local_axis),
        dof_turning=select(turning, n),
        dof_jnt=select(jnt, njnt),
        dof_root=select(mjm.body_rootid[body], n),
        dof_armature=items(reflected(mjm).dof_armature),
        dof_actfrcmin=items(np.where(limited, frcrange[:, 0], -np.inf)),
        dof_actfrcmax=items(np.where(limited, frcrange[:, 1], np.inf)),
    )
    return static, arrays


def attached(mjm: mujoco.MjModel) -> Part:
    """Geoms, sites, cameras and lights: things fixed to a body."""
    n = mjm.nbody
    cam_mode, light_mode = mjm.cam_mode, mjm.light_mode
    target = np.maximum(mjm.cam_targetbodyid, 0)
    light_target = np.maximum(mjm.light_targetbodyid, 0)
    modes = (CamLightType.TRACK, CamLightType.TRACKCOM, CamLightType.TARGETBODY, CamLightType.TARGETBODYCOM)

    def mask(mode, has_target) -> np.ndarray:
        """One row per non-fixed mode: 1 where an element is in it."""
        rows = [(mode == x) & ((x not in modes[2:]) | (has_target >= 0)) for x in modes]
        return np.array(rows, dtype=float).reshape(4, len(mode), 1)

    own = np.zeros((n, 3)), np.tile(IDENTITY, (n, 1))
    carried = (own, *(placed(mjm, kind) for kind in ("body", "geom", "site")))
    static = dict(
        cam_moving=bool((cam_mode != CamLightType.FIXED).any()),
        light_moving=bool((light_mode != CamLightType.FIXED).any()),
        cam_looking=bool(np.isin(cam_mode, modes[2:]).any()),
        light_looking=bool(np.isin(light_mode, modes[2:]).any()),
    )
    arrays = dict(
        attached_body=select([*range(n), *range(n), *mjm.geom_bodyid, *mjm.site_bodyid], n),
        attached_frame=np.concatenate([frames(*x) for x in carried], 1),
        view_body=select([*mjm.cam_bodyid, *mjm.light_bodyid, *target, *light_target], n),
        cam_is=mask(cam_mode, mjm.cam_targetbodyid),
        cam_frame=frames(mjm.cam_pos, mjm.cam_quat),
        cam_pos0=items(mjm.cam_pos0.reshape(-1, 3)),
        cam_poscom0=items(mjm.cam_poscom0.reshape(-1, 3)),
        cam_mat0=items(mjm.cam_mat0.reshape(-1, 9)),
        light_is=mask(light_mode, mjm.light_targetbodyid),
        light_pos=items(mjm.light_pos.reshape(-1, 3)),
        light_dir=items(mjm.light_dir.reshape(-1, 3)),
        light_pos0=items(mjm.light_pos0.reshape(-1, 3)),
        light_poscom0=items(mjm.light_poscom0.reshape(-1, 3)),
        light_dir0=items(mjm.light_dir0.reshape(-1, 3)),
    )
    return static, arrays
