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


def _joint_frames(m: InsideModel, qpos: Tensor) -> Components:
    """The motion of every joint slot as a frame ``[7, nslot * nbody, B]`` relative to the body before it."""
    q = m.slot_scalar @ qpos - m.slot_qpos0
    quat = spatial.axis_angle_to_quat(m.slot_axis, q * m.slot_hinge)
    pos = Components(axis * (q * m.slot_slide) for axis in m.slot_axis)
    if m.nquat:
        quat = m.slot_quat @ joint_quats(m, qpos) + quat * m.slot_noquat
    if m.nfree:
        pos = pos + _free_positions(m, qpos)
    return join(pos + m.slot_pos - rotate(quat, m.slot_pos), quat)


def _free_positions(m: InsideModel, qpos: Tensor) -> Tensor:
    """Positions ``[3, nslot * nbody, B]`` of the free joints in their slots, zero elsewhere."""
    return m.slot_free @ (m.free_qpos @ qpos).unflatten(0, (3, m.nfree))


def _resting_frames(m: InsideModel, d: InsideData) -> Tensor:
    """Each body relative to its parent before any joint moves it; mocap bodies are where the state says."""
    frame = m.body_frame.expand(-1, -1, d.qpos.shape[-1])
    if not m.nmocap:
        return frame
    return frame + m.body_mocap @ join(d.mocap_pos, spatial.normalize(d.mocap_quat)[0])


def _body_frames(m: InsideModel, d: InsideData) -> tuple[Stacked, Tensor]:
    """Each body relative to its parent, and the frames before each joint slot, in slot-major order."""
    qpos, frame = d.qpos, _resting_frames(m, d)
    if not m.nslot:
        return frame, frame
    joint = _joint_frames(m, qpos)
    before = []
    for slot in range(m.nslot):
        before.append(frame)
        frame = compose(frame, joint[:, slot * m.nbody : (slot + 1) * m.nbody])
    return frame, torch.cat(stacked(before), 1)


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
    frame, before = _body_frames(m, d)
    for up in m.body_jumps:
        frame = compose(up @ frame, frame)
    pos, quat = frame[:3], spatial.normalize(frame[3:])[0]
    body = stacked(join(pos, quat))

    xanchor, xaxis = _anchors(m, d.qpos, body, before)
    geom_xpos, geom_xmat = _attached(m.geom_body, m.geom_frame, body)
    site_xpos, site_xmat = _attached(m.site_body, m.site_frame, body)
    return d.replace(
        xpos=pos,
        xquat=quat,
        xmat=spatial.quat_to_mat(quat),
        xipos=pos + rotate(quat, m.body_ipos),
        ximat=spatial.quat_to_mat(quat_mul(quat, m.body_iquat)),
        xanchor=xanchor,
        xaxis=xaxis,
        geom_xpos=geom_xpos,
        geom_xmat=geom_xmat,
        site_xpos=site_xpos,
        site_xmat=site_xmat,
    )


def _anchors(m: InsideModel, qpos: Tensor, body: Tensor, before: Tensor) -> tuple[Stacked, Stacked]:
    """Anchor and axis of every joint ``[3, njnt, B]``, in the world, just before the joint moves."""
    if not m.njnt:
        empty = qpos.new_zeros((3, 0, qpos.shape[-1]))
        return empty, empty.clone()
    anchor = before[:3] + rotate(before[3:], m.slot_pos)
    if m.nfree:  # the anchor of a free joint is the body itself
        anchor = anchor + _free_positions(m, qpos)
    local = m.jnt_slot @ join(anchor, rotate(before[3:], m.slot_axis))
    parent = m.jnt_parent @ body
    return parent[:3] + rotate(parent[3:], local[:3]), rotate(parent[3:], local[3:])


def _attached(of_body: Tensor, local: Tensor, body: Tensor) -> tuple[Components, Components]:
    """Position and matrix of things fixed to bodies."""
    frame = compose(of_body @ body, local)
    return frame[:3], spatial.quat_to_mat(frame[3:])


@public(
    reads=("xpos", "xquat", "subtree_com"),
    writes=("cam_xpos", "cam_xmat", "light_xpos", "light_xdir"),
)
def camlight(m: InsideModel, d: InsideData) -> InsideData:
    """Poses of cameras and lights, in every tracking mode (``mj_camlight``).

    Raises:
      StateError: the poses of ``d`` do not fit the model.
    """
    frames = torch.cat((d.xpos, d.xquat))
    cam_pos, cam_xmat = _attached(m.cam_body, m.cam_frame, frames)
    if m.cam_moving:
        track, trackcom, body, com = m.cam_is.unbind(0)
        cam_pos = _tracked(m.cam_body, d, m.cam_is, (cam_pos, m.cam_pos0, m.cam_poscom0))
        cam_xmat = where((track + trackcom) > 0, m.cam_mat0, cam_xmat)
        if m.cam_looking:
            look = cam_pos - _target(m.cam_target, d, com)
            cam_xmat = where((body + com) > 0, _looking_along(look), cam_xmat)

    carrier = m.light_body @ frames
    light_pos = carrier[:3] + rotate(carrier[3:], m.light_pos)
    light_dir = rotate(carrier[3:], m.light_dir)
    if m.light_moving:
        track, trackcom, body, com = m.light_is.unbind(0)
        light_pos = _tracked(m.light_body, d, m.light_is, (light_pos, m.light_pos0, m.light_poscom0))
        light_dir = where((track + trackcom) > 0, m.light_dir0, light_dir)
        if m.light_looking:
            light_dir = where((body + com) > 0, _target(m.light_target, d, com) - light_pos, light_dir)
    return d.replace(
        cam_xpos=cam_pos, cam_xmat=cam_xmat, light_xpos=light_pos, light_xdir=spatial.normalize(light_dir)[0]
    )


def _tracked(
    of_body: Tensor, d: InsideData, modes: Tensor, positions: tuple[Stacked, Tensor, Tensor]
) -> Components:
    """Positions with those in a tracking mode moved along with the body, or with its subtree's centre of mass."""
    fixed, pos0, poscom0 = positions
    pos = where(modes[0] > 0, of_body @ d.xpos + pos0, fixed)
    return where(modes[1] > 0, of_body @ d.subtree_com + poscom0, pos)


def _target(of_target: Tensor, d: InsideData, com: Tensor) -> Tensor:
    """The point looked at: a body's frame, or the centre of mass of its subtree."""
    return torch.where(com > 0, of_target @ d.subtree_com, of_target @ d.xpos)


def _looking_along(back: Stacked) -> Components:
    """Matrix whose z axis points along ``back`` and whose x axis is horizontal."""
    z = spatial.normalize(back)[0]
    x = spatial.normalize(Components((-z[1], z[0], torch.zeros_like(z[0]))))[0]
    y = spatial.normalize(spatial.cross(z, x))[0]
    return Components((x[0], y[0], z[0], x[1], y[1], z[1], x[2], y[2], z[2]))
