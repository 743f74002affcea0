"""Contacts of all worlds in static slots (``mj_collision``)."""

import torch
from torch import Tensor

from mujoco_torch._src.collision.primitive import COLLIDERS, Contacts, default_hint, frame_along
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
    found = (m.contact_found @ torch.cat(_found_by_kind(m, d))).unflatten(0, (-1, m.nconmax))
    dist, pos, normal = found[0], found[1:4], found[4:7]
    hint = default_hint(normal)
    if m.contact_hinted:
        hint = found[7:10] + m.contact_hintless * hint
    if m.split_contacts:
        here = (dist >= m.contact_nearest) & (dist < m.contact_farthest)
        dist = torch.where(here, dist, torch.inf)
    return d.replace(
        ncon=(dist < torch.inf).sum(0, dtype=torch.int32),
        contact_dist=dist,
        contact_pos=pos,
        contact_frame=frame_along(normal, hint),
    )


def _found_by_kind(m: InsideModel, d: InsideData) -> list[Tensor]:
    """What the colliders of all kinds of pairs find, in the order that ``structure.rows`` knows, ``[n, B]`` each."""
    geoms = m.pair_geoms @ d.joined("geom_xpos", "geom_xmat")
    found, start = [], 0
    for kind1, kind2, name, npair in m.pair_groups:
        first, second = geoms[:, start : start + 2 * npair].split(npair, 1)
        start += 2 * npair
        size1, size2, margin = (getattr(m, f"{name}_{what}") for what in ("size1", "size2", "margin"))
        found += _rows(
            COLLIDERS[kind1, kind2](first[:3], first[3:], size1, second[:3], second[3:], size2, margin)
        )
    return found


def _rows(c: Contacts) -> list[Tensor]:
    """Distance, position and normal of each slot; a frame of all slots comes last."""
    one_frame = c.hint is not None
    rows = []
    for slot, (dist, pos, active) in enumerate(zip(c.dist, c.pos, c.active, strict=True)):
        rows += [torch.where(active, dist, torch.inf), *pos, *(() if one_frame else c.normal[slot])]
    return [*rows, *c.normal[0], *c.hint] if one_frame else rows
