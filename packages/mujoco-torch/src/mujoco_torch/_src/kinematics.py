"""Poses: joints, bodies, geoms, sites, cameras and lights (``mj_kinematics``, ``mj_camlight``).

Every body has the same number of joint slots; a slot without a joint holds the identity. So all joints are turned into
transforms at once, composed slot by slot within a body, and the bodies down the tree by pointer jumping in
``ceil(log2 depth)`` rounds.
"""

import torch
from torch import Tensor

from mujoco_torch._src import spatial
from mujoco_torch._src.components import Components, join, stacked, where
from mujoco_torch._src.layout import names
from mujoco_torch._src.spatial import Stacked, quat_mul, rotate
from mujoco_torch._src.stage import public
from mujoco_torch._src.types import InsideData, InsideModel

# A frame is one stacked quantity [7, n, B]: position, then unit quaternion. So a gather moves both at once.


def compose(a: Stacked, b: Stacked) -> Components:
    """Frames ``b``, given in frames ``a``, in the frame that ``a`` is given in."""
    return join(a[:3] + rotate(a[3:], b[:3]), quat_mul(a[3:], b[3:]))


def joint_quats(m: InsideModel, qpos: Tensor) -> Components:
    """Unit quaternions ``[4, nquat, B]`` of the ball and free joints."""
    return spatial.normalize((m.quat_qpos @ qpos).unflatten(0, (4, m.nquat)))[0]


def _joint_frames(m: InsideModel, qpos: Tensor) -> tuple[Components, Stacked | None]:
    """The motion of every joint slot as a frame ``[7, nslot * nbody, B]`` relative to the body before it.

    And the positions of free joints in their slots, zero elsewhere; None if there are no free joints.
    """
    parts = (m.slot_qpos @ qpos).unflatten(0, (-1, m.nslot * m.nbody))
    q = parts[0] - m.slot_qpos0
    quat = spatial.axis_angle_to_quat(m.slot_axis, q * m.slot_hinge)
    pos = Components(axis * (q * m.slot_slide) for axis in m.slot_axis)
    if m.nquat:
        quat = where(m.slot_noquat > 0, quat, spatial.normalize(parts[1:5])[0])
    free = parts[5:8] if m.nfree else None
    if free is not None:
        pos = pos + free
    return join(pos + m.slot_pos - rotate(quat, m.slot_pos), quat), free


def _resting_frames(m: InsideModel, d: InsideData) -> Tensor:
    """Each body relative to its parent before any joint moves it; mocap bodies are where the state says."""
    frame = m.body_frame.expand(-1, -1, d.qpos.shape[-1])
    if not m.nmocap:
        return frame
    return frame + m.body_mocap @ join(d.mocap_pos, spatial.normalize(d.mocap_quat)[0])


def _body_frames(m: InsideModel, d: InsideData) -> tuple[Stacked, list[Components]]:
    """Each body relative to its parent; anchors and axes of the joints of each slot ``[6, nbody, B]``, given likewise."""
    frame, joints = _resting_frames(m, d), []
    if not m.nslot:
        return frame, joints
    motion, free = _joint_frames(m, d.qpos)
    for slot in range(m.nslot):
        bodies = slice(slot * m.nbody, (slot + 1) * m.nbody)
        anchor = frame[:3] + rotate(frame[3:], m.slot_pos[:, bodies])
        if free is not None:  # the anchor of a free joint is the body itself
            anchor = anchor + free[:, bodies]
        joints.append(join(anchor, rotate(frame[3:], m.slot_axis[:, bodies])))
        frame = compose(frame, motion[:, bodies])
    return frame, joints


@public(
    reads=("qpos", "mocap_pos", "mocap_quat"),
    writes=names("xpos xquat xmat xipos ximat xanchor xaxis geom_xpos geom_xmat site_xpos site_xmat"),
)
def kinematics(m: InsideModel, d: InsideData) -> InsideData:
    """Poses of bodies, joints, geoms and sites from ``qpos`` and mocap poses (``mj_kinematics``).

    Quaternions in ``qpos`` and ``mocap_quat`` are normalized here, not in place. Source: MuJoCo documentation,
    "Computation", section "Kinematic tree".

    Raises:
      StateError: ``qpos`` or the mocap poses do not fit the model.
    """
    frame, joints = _body_frames(m, d)
    for up in m.body_jumps:
        frame = compose(up @ frame, frame)
    d = d.replace_joined(join(frame[:3], spatial.normalize(frame[3:])[0]), "xpos", "xquat")
    body = d.joined("xpos", "xquat")
    d = d.replace_joined(_anchors(m, d.qpos, body, joints), "xanchor", "xaxis")

    # The axes of the bodies, their frames of inertia, geoms and sites, all at once.
    attached = stacked(_attached(m.attached_body @ body, m.attached_frame))
    *_, geoms, sites = attached.split((m.nbody, m.nbody, m.ngeom, m.nsite), 1)
    d = d.replace_joined(geoms, "geom_xpos", "geom_xmat").replace_joined(sites, "site_xpos", "site_xmat")
    bodies, inertias = attached[:, : m.nbody], attached[:, m.nbody : 2 * m.nbody]
    return d.replace(xmat=bodies[3:]).replace_joined(inertias, "xipos", "ximat")


def _anchors(m: InsideModel, qpos: Tensor, body: Tensor, joints: list[Components]) -> Stacked:
    """Anchor and axis of every joint ``[6, njnt, B]``, in the world, just before the joint moves."""
    if not m.njnt:
        return qpos.new_zeros((6, 0, qpos.shape[-1]))
    slots = torch.cat([joint[k] for k in range(6) for joint in joints]).unflatten(0, (6, -1))
    local, parent = m.jnt_slot @ slots, m.jnt_parent @ body
    return join(parent[:3] + rotate(parent[3:], local[:3]), rotate(parent[3:], local[3:]))


def _attached(body: Stacked, local: Tensor) -> Components:
    """Positions and matrices ``[12, n, B]`` of things fixed to bodies, whose frames are given."""
    frame = compose(body, local)
    return join(frame[:3], spatial.quat_to_mat(frame[3:]))


@public(
    reads=("xpos", "xquat", "subtree_com"),
    writes=("cam_xpos", "cam_xmat", "light_xpos", "light_xdir"),
)
def camlight(m: InsideModel, d: InsideData) -> InsideData:
    """Poses of cameras and lights, in every tracking mode (``mj_camlight``).

    Raises:
      StateError: the poses of ``d`` do not fit the model.
    """
    # Rows of the cameras' and the lights' bodies, then of what they look at.
    rows = (m.ncam, m.nlight, m.ncam, m.nlight)
    cam, light, cam_target, light_target = (m.view_body @ d.joined("xpos", "xquat")).split(rows, 1)
    coms = (None,) * 4
    if m.cam_moving or m.light_moving:
        coms = (m.view_body @ d.subtree_com).split(rows, 1)
    pose = _attached(cam, m.cam_frame)
    if m.cam_moving:
        track, trackcom, body, com = m.cam_is.unbind(0)
        pos = _tracked(m.cam_is, (pose[:3], cam[:3] + m.cam_pos0, coms[0] + m.cam_poscom0))
        mat = where((track + trackcom) > 0, m.cam_mat0, pose[3:])
        target = torch.where(com > 0, coms[2], cam_target[:3])
        pose = join(pos, where((body + com) > 0, _looking_along(pos - target), mat))

    pos = light[:3] + rotate(light[3:], m.light_pos)
    direction = rotate(light[3:], m.light_dir)
    if m.light_moving:
        track, trackcom, body, com = m.light_is.unbind(0)
        pos = _tracked(m.light_is, (pos, light[:3] + m.light_pos0, coms[1] + m.light_poscom0))
        direction = where((track + trackcom) > 0, m.light_dir0, direction)
        target = torch.where(com > 0, coms[3], light_target[:3])
        direction = where((body + com) > 0, target - pos, direction)
    d = d.replace_joined(pose, "cam_xpos", "cam_xmat")
    return d.replace_joined(join(pos, spatial.normalize(direction)[0]), "light_xpos", "light_xdir")


def _tracked(modes: Tensor, positions: tuple[Stacked, Tensor, Tensor]) -> Components:
    """Positions: fixed to the body; of those in a tracking mode moved along with it, or with its subtree's centre."""
    fixed, with_body, with_com = positions
    return where(modes[1] > 0, with_com, where(modes[0] > 0, with_body, fixed))


def _looking_along(back: Stacked) -> Components:
    """Matrix whose z axis points along ``back`` and whose x axis is horizontal."""
    z = spatial.normalize(back)[0]
    x = spatial.normalize(Components((-z[1], z[0], torch.zeros_like(z[0]))))[0]
    y = spatial.normalize(spatial.cross(z, x))[0]
    return Components((x[0], y[0], z[0], x[1], y[1], z[1], x[2], y[2], z[2]))
