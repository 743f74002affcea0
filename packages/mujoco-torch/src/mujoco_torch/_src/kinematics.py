"""Poses: joints, bodies, geoms, sites, cameras and lights (``mj_kinematics``, ``mj_camlight``).

Every body has the same number of joint slots; a slot without a joint holds the identity. So all joints are turned into
transforms at once, and composed down the tree by one operator.
"""

import torch
from torch import Tensor

from mujoco_torch._src import spatial
from mujoco_torch._src.components import Components, join, where
from mujoco_torch._src.layout import names
from mujoco_torch._src.poses import attached, poses
from mujoco_torch._src.spatial import Stacked, rotate
from mujoco_torch._src.stage import public
from mujoco_torch._src.types import InsideData, InsideModel


def joint_quats(m: InsideModel, qpos: Tensor) -> Components:
    """Unit quaternions ``[4, nquat, B]`` of the ball and free joints."""
    return spatial.normalize((m.quat_qpos @ qpos).unflatten(0, (4, m.nquat)))[0]


def _joint_frames(m: InsideModel, qpos: Tensor) -> Components:
    """The motion of every joint slot as a frame ``[7, nslot * nbody, B]`` relative to the body before it."""
    parts = (m.slot_qpos @ qpos).unflatten(0, (-1, m.nslot * m.nbody))
    q = parts[0] - m.slot_qpos0
    quat = spatial.axis_angle_to_quat(m.slot_axis, q * m.slot_hinge)
    pos = Components(axis * (q * m.slot_slide) for axis in m.slot_axis)
    if m.nquat:
        quat = where(m.slot_noquat > 0, quat, spatial.normalize(parts[1:5])[0])
    if m.nfree:
        pos = pos + parts[5:8]
    return join(pos + m.slot_pos - rotate(quat, m.slot_pos), quat)


def _resting_frames(m: InsideModel, d: InsideData) -> Tensor:
    """Each body relative to its parent before any joint moves it; mocap bodies are where the state says."""
    if not m.nmocap:
        return m.body_frame
    return m.body_frame + m.body_mocap @ join(d.mocap_pos, spatial.normalize(d.mocap_quat)[0])


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
    worlds = d.qpos.shape[-1]
    motion = _joint_frames(m, d.qpos) if m.nslot else d.qpos.new_zeros((7, 0, worlds))
    body, axes, things = poses(
        _resting_frames(m, d),
        motion,
        m.joined("slot_pos", "slot_axis", "slot_free"),
        m.attached_frame,
        (m.body_parent, m.jnt_slot, m.jnt_parent, m.attached_body),
    )
    bodies, inertias, geoms, sites = things.split((m.nbody, m.nbody, m.ngeom, m.nsite), 1)
    d = d.replace_joined(body, "xpos", "xquat").replace_joined(axes, "xanchor", "xaxis")
    d = d.replace(xmat=bodies[3:]).replace_joined(inertias, "xipos", "ximat")
    return d.replace_joined(geoms, "geom_xpos", "geom_xmat").replace_joined(sites, "site_xpos", "site_xmat")


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
    frames = m.view_body @ d.joined("xpos", "xquat")
    centres = m.view_body @ d.subtree_com if m.cam_moving or m.light_moving else frames[:3]
    cam, light, cam_target, light_target = frames.split(rows, 1)
    coms = centres.split(rows, 1)
    pose = attached(cam, m.cam_frame)
    if m.cam_moving:
        track, trackcom, body, com = m.cam_is.unbind(0)
        pos = _tracked(m.cam_is, (pose[:3], cam[:3] + m.cam_pos0, coms[0] + m.cam_poscom0))
        mat = where((track + trackcom) > 0, m.cam_mat0, pose[3:])
        if m.cam_looking:
            target = torch.where(com > 0, coms[2], cam_target[:3])
            mat = where((body + com) > 0, _looking_along(pos - target), mat)
        pose = join(pos, mat)

    pos = light[:3] + rotate(light[3:], m.light_pos)
    direction = rotate(light[3:], m.light_dir)
    if m.light_moving:
        track, trackcom, body, com = m.light_is.unbind(0)
        pos = _tracked(m.light_is, (pos, light[:3] + m.light_pos0, coms[1] + m.light_poscom0))
        direction = where((track + trackcom) > 0, m.light_dir0, direction)
        if m.light_looking:
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
