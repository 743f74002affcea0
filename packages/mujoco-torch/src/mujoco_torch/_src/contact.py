"""Contacts of all worlds in static slots (``mj_collision``)."""

import torch
from torch import Tensor

from mujoco_torch._src.collision.primitive import COLLIDERS, Contacts
from mujoco_torch._src.components import join
from mujoco_torch._src.stage import public
from mujoco_torch._src.types import InsideData, InsideModel


@public(
    reads=("geom_xpos", "geom_xmat"),
    writes=("ncon", "contact_dist", "contact_pos", "contact_frame"),
)
def collision(m: InsideModel, d: InsideData) -> InsideData:
    """Contacts of every geom pair that can touch, with C's counts and order (``mj_collision``).

    Departures from C:
      1. Contacts have static slots in C's order; an empty slot has ``dist = inf``. An adhesive contact with friction
        has two slots, the second without friction, for the gap.

    Raises:
      StateError: the geom poses of ``d`` do not fit the model.
    """
    worlds = d.geom_xpos.shape[-1]
    if not m.nconmax:
        return d.replace(
            ncon=d.geom_xpos.new_zeros(worlds, dtype=torch.int32),
            contact_dist=d.geom_xpos.new_zeros((0, worlds)),
            contact_pos=d.geom_xpos.new_zeros((3, 0, worlds)),
            contact_frame=d.geom_xpos.new_zeros((9, 0, worlds)),
        )
    groups = [_collide(m, d, *group) for group in m.pair_groups]
    found = m.slot_order @ torch.cat(groups, 1) if len(groups) > 1 or m.split_contacts else groups[0]
    dist = found[0]
    if m.split_contacts:
        here = (dist >= m.contact_nearest) & (dist < m.contact_farthest)
        dist = torch.where(here, dist, torch.inf)
    return d.replace(
        ncon=(dist < torch.inf).sum(0, dtype=torch.int32),
        contact_dist=dist,
        contact_pos=found[1:4],
        contact_frame=found[4:13],
    )


def _collide(m: InsideModel, d: InsideData, type1: int, type2: int, name: str, npair: int) -> Tensor:
    """Contacts of one kind of pair: distance, position, frame stacked to ``[13, slots, B]``, pair by pair."""
    pose = torch.cat((d.geom_xpos, d.geom_xmat))
    first, second = (getattr(m, f"{name}_geoms") @ pose).split(npair, 1)
    size1, size2, margin = (getattr(m, f"{name}_{what}") for what in ("size1", "size2", "margin"))
    c: Contacts = COLLIDERS[type1, type2](first[:3], first[3:], size1, second[:3], second[3:], size2, margin)
    dist = torch.where(c.active, c.dist, torch.inf)
    return join((dist,), c.pos, c.frame).stack().transpose(1, 2).flatten(1, 2)
