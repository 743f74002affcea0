"""Recursive Newton-Euler: Coriolis, centrifugal and gravity forces (``mj_rne``)."""

from torch import Tensor

from mujoco_torch._src.components import join
from mujoco_torch._src.spatial import dot, force_cross, inertia_mul
from mujoco_torch._src.stage import public
from mujoco_torch._src.types import InsideData, InsideModel


@public(reads=("qvel", "cdof", "cdof_dot", "cvel", "cinert"), writes=("qfrc_bias",))
def rne(m: InsideModel, d: InsideData) -> InsideData:
    """Recursive Newton-Euler with zero joint acceleration (``mj_rne`` with ``flg_acc = 0``).

    Source: Featherstone (2008), ch. 5. Both recursions are sums: over ancestors for the accelerations, over
    descendants for the forces.

    Raises:
      StateError: the velocities of ``d`` do not fit the model.
    """
    return d.replace(qfrc_bias=newton_euler(m, d))


def newton_euler(m: InsideModel, d: InsideData, qacc: Tensor | None = None) -> Tensor:
    """Joint-space force ``[nv, B]`` of the motion of all bodies, with joint acceleration or without."""
    rate = d.cdof_dot * d.qvel
    if qacc is not None:
        rate = rate + d.cdof * qacc
    rotational, translational = (m.body_dof @ rate).split(3)
    cacc = join(rotational, translational - m.gravity)
    force = inertia_mul(d.cinert, cacc) + force_cross(d.cvel, inertia_mul(d.cinert, d.cvel))
    # A dof carries the forces of all bodies that it moves.
    return dot(d.cdof, m.body_dof.T @ force)
