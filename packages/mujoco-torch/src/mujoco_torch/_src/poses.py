"""Poses down the tree of bodies: one operator on a CPU, torch code that the compiler fuses elsewhere.

A frame is one stacked quantity ``[7, n, B]``: position, then unit quaternion. So a gather moves both at once.
"""

import torch
from torch import Tensor

from mujoco_torch._src import ops, spatial
from mujoco_torch._src.components import Components, join, stacked
from mujoco_torch._src.pattern import Pattern
from mujoco_torch._src.spatial import Stacked, quat_mul, rotate


def compose(a: Stacked, b: Stacked) -> Components:
    """Frames ``b``, given in frames ``a``, in the frame that ``a`` is given in."""
    return join(a[:3] + rotate(a[3:], b[:3]), quat_mul(a[3:], b[3:]))


def attached(body: Stacked, local: Tensor) -> Components:
    """Positions and matrices ``[12, n, B]`` of things fixed to bodies, whose frames are given."""
    frame = compose(body, local)
    return join(frame[:3], spatial.quat_to_mat(frame[3:]))


def _reference(
    resting: Tensor,
    motion: Tensor,
    slots: Tensor,
    local: Tensor,
    parent: int,
    joint: int,
    joint_parent: int,
    carrier: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Slot by slot within all bodies, then the bodies down the tree by pointer jumping, ``ceil(log2 depth)`` rounds."""
    n = resting.shape[1]
    frame, joints = resting.expand(-1, -1, motion.shape[-1]), []
    for first in range(0, motion.shape[1], n):
        slot = slice(first, first + n)
        pos, axis, free = slots[:, slot].split((3, 3, 1))
        anchor = frame[:3] + rotate(frame[3:], pos) + free[0] * motion[:3, slot]
        joints.append(join(anchor, rotate(frame[3:], axis)))
        frame = compose(frame, motion[:, slot])
    for up in Pattern.of(parent).jumps:
        frame = compose(up @ frame, frame)
    body = join(frame[:3], spatial.normalize(frame[3:])[0]).stack()
    of_joint = Pattern.of(joint_parent) @ body
    in_slots = (
        torch.cat([x[k] for k in range(6) for x in joints]).unflatten(0, (6, -1)) if joints else motion[:6]
    )
    of_slot = Pattern.of(joint) @ in_slots
    axes = join(of_joint[:3] + rotate(of_joint[3:], of_slot[:3]), rotate(of_joint[3:], of_slot[3:]))
    return body, axes.stack(), attached(Pattern.of(carrier) @ body, local).stack()


def _fake(resting: Tensor, motion: Tensor, *rest) -> tuple[Tensor, Tensor, Tensor]:
    worlds = motion.shape[-1]
    return (
        motion.new_empty((7, resting.shape[1], worlds)),
        motion.new_empty((6, Pattern.of(rest[-3]).shape[0], worlds)),
        motion.new_empty((12, rest[1].shape[1], worlds)),
    )


_SHARED = (2, 3)
"""Positions of the arguments that are the same in all worlds."""
_operator = ops.define(
    "poses(Tensor resting, Tensor motion, Tensor slots, Tensor local, int parent, int joint, int joint_parent, "
    "int carrier) -> (Tensor, Tensor, Tensor)",
    _reference,
    _fake,
    shared=_SHARED,
)
_call = ops.fused(_operator, _reference, tensors=4, shared=_SHARED, named=Pattern.of)


def poses(
    resting: Tensor, motion: Stacked, slots: Tensor, local: Tensor, patterns: tuple[Pattern, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Frames of bodies ``[7, nbody, B]``, anchors and axes of joints ``[6, njnt, B]``, things fixed to bodies.

    The latter are positions and matrices ``[12, n, B]``.

    Args:
      resting: each body relative to its parent before a joint moves it, ``[7, nbody, B or 1]``.
      motion: of each joint slot, in slot-major order, relative to the body before it, ``[7, nslot * nbody, B]``.
      slots: of the joint in each slot position and axis, and 1 where it is free, the body itself being its anchor.
      local: frames of things in those of their bodies, ``[7, n, 1]``.
      patterns: they pick the parent of each body, the slot of each joint, the parent of its body, the body of each
        thing.
    """
    if (
        torch._C._are_functorch_transforms_active()
    ):  # the rule of vmap multiplies the worlds of every argument
        resting = resting.expand(-1, -1, motion[0].shape[-1])
    return _call(resting, stacked(motion), slots, local, *(pattern.key for pattern in patterns))
