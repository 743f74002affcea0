"""Constraint rows made where they are in use: from the values of given rows, and from contact frames and motion axes.

Worlds seldom use the same rows. The workspace of a group has slots; each world fills them with its own rows, one after
the other, and the slots of the others hold zeros there.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from .tiles import global_at, load_vector

ROWS = tl.constexpr(8)
"""Slots that are worked on at once; a thread may hold a number of each. With 16, 2 kB a thread are spilled, not 0.3."""

CONSTRAINTS = tl.constexpr(32)
"""Constraints that are looked at at once."""


class Rows(NamedTuple):
    """Slots in use of a group, in its workspace: jac (slots, N, W), those from weight to row (slots, W).

    Rows by themselves take the first slots, `plain` of them. Their forces grow with residuals between `low` and `high`
    where rows are `bounded`; else they only push. The other slots, up to `count`, are those of `cones` elliptic cones,
    as many each as there are `axes`, which is 0 where there are none; `cone` (cones, CONE, W) holds their numbers.
    """

    jac: tl.tensor
    weight: tl.tensor
    aref: tl.tensor
    residual: tl.tensor
    rate: tl.tensor
    low: tl.tensor
    high: tl.tensor
    row: tl.tensor
    cone: tl.tensor
    plain: tl.tensor
    cones: tl.tensor
    count: tl.tensor
    axes: tl.constexpr
    bounded: tl.constexpr


class Factors(NamedTuple):
    """What rows are made of: arguments of the operator, the world last, and the stride of given_jac over worlds."""

    cdof: tl.tensor
    com: tl.tensor
    pos: tl.tensor
    frame: tl.tensor
    edge: tl.tensor
    given: tl.tensor
    given_worlds: tl.tensor
    given_weight: tl.tensor
    given_reference: tl.tensor
    contact_weight: tl.tensor
    contact_reference: tl.tensor
    friction: tl.tensor
    damping: tl.tensor
    loss: tl.tensor


class Structure(NamedTuple):
    """Tables of the system (tables.py) and its sizes.

    references: along how many axes contacts have a reference; 0 where all rows of a contact have the same one.
    """

    constraint_row: tl.tensor
    row_constraint: tl.tensor
    given_at: tl.tensor
    side_root: tl.tensor
    side_moved: tl.tensor
    nv: tl.constexpr
    nbody: tl.constexpr
    equalities: tl.constexpr
    frictions: tl.constexpr
    given: tl.constexpr
    contacts: tl.constexpr
    contact_rows: tl.constexpr
    axes: tl.constexpr
    sides: tl.constexpr
    widest: tl.constexpr
    references: tl.constexpr


# ---- places


@triton.jit
def slots_at(first, W: tl.constexpr):
    """Offsets (ROWS, W) of the slots from `first` on."""
    return (first + tl.arange(0, ROWS))[:, None] * W + tl.arange(0, W)[None, :]


@triton.jit
def jac_at(first, N: tl.constexpr, W: tl.constexpr):
    """Offsets (ROWS, N, W) of J in the slots from `first` on."""
    slot, dof = (first + tl.arange(0, ROWS))[:, None, None], tl.arange(0, N)[None, :, None]
    return (slot * N + dof) * W + tl.arange(0, W)[None, None, :]


# ---- making rows


@triton.jit
def list_rows(s, f, rows, world, inside, worlds):
    """Give rows that are active their slots; returns how many rows by themselves, and cones, each world has (W,)."""
    filled = _list(s, f, rows, tl.zeros((world.shape[0],), tl.int32), world, inside, worlds, False)
    cones = tl.zeros_like(filled)
    if rows.axes > 0:
        plain = before_cones(filled)
        end = _list(s, f, rows, tl.full(filled.shape, plain, tl.int32), world, inside, worlds, True)
        cones = (end - plain) // rows.axes
    return filled, cones


@triton.jit
def before_cones(filled):
    """Slots of rows by themselves, before cones: blocks of slots are of one sort."""
    return (tl.max(filled, 0) + ROWS - 1) // ROWS * ROWS


@triton.jit
def _list(s, f, rows, filled, world, inside, worlds, cones: tl.constexpr):
    """Write to each world's slots, from `filled` on, which rows are active in it; of a cone the first row alone.

    Either cones or all others; returns what is filled then.
    """
    W: tl.constexpr = world.shape[0]
    lane = tl.arange(0, W)[None, :]
    for first in range(0, s.given + s.contacts, CONSTRAINTS):
        constraint = first + tl.arange(0, CONSTRAINTS)
        known = constraint < s.given + s.contacts
        start = tl.load(s.constraint_row + constraint, mask=known, other=0)
        size = tl.load(s.constraint_row + constraint + 1, mask=known, other=0) - start
        mask = known[:, None] & inside[None, :]
        active = (
            of_constraint(s, f.given_weight, f.contact_weight, constraint[:, None], mask, world, worlds) != 0
        )
        if rows.axes > 0:  # all that has more rows than one is a cone
            active = active & ((size > 1) == cones)[:, None]
        if cones:
            size = tl.full(size.shape, rows.axes, tl.int32)
        used = tl.where(active, size[:, None], 0)
        slot = filled[None, :] + tl.cumsum(used, 0) - used
        for r in range(1 if rows.axes > 0 else s.widest):
            tl.store(rows.row + (slot + r) * W + lane, start[:, None] + r, mask=used > r)
        filled += tl.sum(used, 0)
    return filled


@triton.jit
def of_constraint(s, given, contact, constraint, used, world, worlds):
    """Values of constraints, from those of given rows and those of contacts; zero where not used."""
    is_given = constraint < s.given
    x = tl.load(given + global_at(constraint, world[None, :], worlds), mask=used & is_given, other=0)
    at = global_at(constraint - s.given, world[None, :], worlds)
    return x + tl.load(contact + at, mask=used & ~is_given, other=0)


@triton.jit
def make_rows(s, f, rows, filled, cones, qvel, world, inside, worlds):
    """Fill all slots in use: J, aref = reference - damping J qvel, and what bounds a row by itself."""
    W: tl.constexpr = qvel.shape[1]
    tl.debug_barrier()
    for first in range(0, rows.plain, ROWS):
        used = (first + tl.arange(0, ROWS))[:, None] < filled[None, :]
        row = tl.load(rows.row + slots_at(first, W), mask=used, other=0)
        _make(s, f, rows, first, row, used, 0, qvel, world, inside, worlds, False)
    if rows.axes > 0:
        for first in range(rows.plain, rows.count, ROWS):
            slot = first - rows.plain + tl.arange(0, ROWS)[:, None]
            axis, leader = slot % rows.axes, first_slot(rows, slot // rows.axes)
            used = slot // rows.axes < cones[None, :]
            row = tl.load(rows.row + leader * W + tl.arange(0, W)[None, :], mask=used, other=0)
            constraint = tl.load(s.row_constraint + row, mask=used, other=0)
            used = used & (row + axis < tl.load(s.constraint_row + constraint + 1, mask=used, other=0))
            _make(s, f, rows, first, row + axis, used, axis, qvel, world, inside, worlds, True)
    tl.debug_barrier()


@triton.jit
def first_slot(rows, cone):
    """The first slot of a cone."""
    return rows.plain + cone * rows.axes


@triton.jit
def _make(s, f, rows, first, row, used, axis, qvel, world, inside, worlds, cones: tl.constexpr):
    """Fill the slots from `first` on with rows (ROWS, W); those of `cones` times the friction along their axis."""
    N: tl.constexpr = qvel.shape[0]
    W: tl.constexpr = qvel.shape[1]
    at = slots_at(first, W)
    constraint = tl.load(s.row_constraint + row, mask=used, other=0)
    weight = of_constraint(s, f.given_weight, f.contact_weight, constraint, used, world, worlds)
    if s.references > 0:
        reference = _reference(s, f, constraint, row, used, world, worlds)
    else:
        reference = of_constraint(s, f.given_reference, f.contact_reference, constraint, used, world, worlds)
    damping = tl.load(f.damping + row, mask=used, other=0)

    jac = tl.zeros((ROWS, N, W), qvel.dtype)
    if s.given > 0:
        jac += _given_rows(s, f, constraint, used & (constraint < s.given), world, N)
    if s.contacts > 0:
        contact, contact_row = constraint - s.given, row - s.given
        jac += _contact_rows(s, f, contact, contact_row, used & (contact >= 0), world, inside, worlds, N)
    if cones:
        friction = tl.load(f.friction + axis * s.contacts + constraint - s.given, mask=used, other=0)
        jac *= friction[:, None, :]
        reference *= friction
    tl.store(rows.jac + jac_at(first, N, W), jac)
    tl.store(rows.weight + at, weight)
    tl.store(rows.aref + at, reference - damping * tl.sum(jac * qvel[None, :, :], 1))
    if rows.bounded and not cones:
        held = constraint < s.equalities + s.frictions
        rubs = held & (constraint >= s.equalities)
        loss = tl.load(f.loss + constraint - s.equalities, mask=used & rubs, other=0)
        bound = tl.where(rubs, loss / tl.where(used, weight, 1.0), float("inf"))
        tl.store(rows.low + at, tl.where(used, -bound, 0.0))
        tl.store(rows.high + at, tl.where(used & held, bound, 0.0))


@triton.jit
def _reference(s, f, constraint, row, used, world, worlds):
    """References of rows (ROWS, W), zero where not used: those of contacts are sums along their edges."""
    at = global_at(constraint, world[None, :], worlds)
    total = tl.load(f.given_reference + at, mask=used & (constraint < s.given), other=0)
    used = used & (constraint >= s.given)
    for axis in tl.static_range(s.references):
        edge = tl.load(f.edge + axis * s.contact_rows + row - s.given, mask=used, other=0)
        at = global_at(axis * s.contacts + constraint - s.given, world[None, :], worlds)
        total += edge * tl.load(f.contact_reference + at, mask=used, other=0)
    return total


@triton.jit
def _given_rows(s, f, given, used, world, N: tl.constexpr):
    """J (ROWS, N, W) of given rows (ROWS, W), zero where not used."""
    dof = tl.arange(0, N)[None, :, None]
    value = tl.load(s.given_at + given[:, None, :] * N + dof, mask=used[:, None, :], other=-1)
    at = global_at(value, world[None, None, :] * (f.given_worlds > 1), f.given_worlds)
    return tl.load(f.given + at, mask=value >= 0, other=0)


@triton.jit
def _contact_rows(s, f, contact, row, used, world, inside, worlds, N: tl.constexpr):
    """J (ROWS, N, W) of contact rows (ROWS, W), zero where not used."""
    dof = tl.arange(0, N)[None, :, None]
    pos0, pos1, pos2 = _triple(f.pos, 0, s.contacts, contact, used, world, worlds)
    force0, force1, force2, torque0, torque1, torque2 = _wrench(s, f, contact, row, used, world, worlds)
    jac = tl.zeros((row.shape[0], N, row.shape[1]), f.pos.dtype.element_ty)
    for side in tl.static_range(s.sides):
        number = contact * s.sides + side
        root = tl.load(s.side_root + number, mask=used, other=0)
        com0, com1, com2 = _triple(f.com, 0, s.nbody, root, used, world, worlds)
        arm0, arm1, arm2 = pos0 - com0, pos1 - com1, pos2 - com2
        turn0 = torque0 + arm1 * force2 - arm2 * force1
        turn1 = torque1 + arm2 * force0 - arm0 * force2
        turn2 = torque2 + arm0 * force1 - arm1 * force0
        power = _power(f.cdof, 0, turn0, turn1, turn2, s.nv, world, inside, worlds, N)
        power += _power(f.cdof, 3, force0, force1, force2, s.nv, world, inside, worlds, N)
        sign = tl.load(s.side_moved + number[:, None, :] * N + dof, mask=used[:, None, :], other=0)
        jac += tl.where(sign != 0, power * sign.to(power.dtype), 0.0)
    return jac


@triton.jit
def _wrench(s, f, contact, row, used, world, worlds):
    """Force, and torque about the contact point, of each row: so far along each axis of its contact's frame."""
    zero = tl.zeros(row.shape, f.frame.dtype.element_ty)
    force0, force1, force2, torque0, torque1, torque2 = zero, zero, zero, zero, zero, zero
    for axis in tl.static_range(s.axes):
        edge = tl.load(f.edge + axis * s.contact_rows + row, mask=used, other=0)
        x, y, z = _triple(f.frame, 3 * (axis % 3), s.contacts, contact, used, world, worlds)
        if axis < 3:
            force0, force1, force2 = force0 + edge * x, force1 + edge * y, force2 + edge * z
        else:
            torque0, torque1, torque2 = torque0 + edge * x, torque1 + edge * y, torque2 + edge * z
    return force0, force1, force2, torque0, torque1, torque2


@triton.jit
def _triple(source, first, items, item, used, world, worlds):
    """Components `first` to `first + 2` of items (ROWS, W) of a tensor (components, items, B)."""
    at = global_at(first * items + item, world[None, :], worlds)
    x = tl.load(source + at, mask=used, other=0)
    y = tl.load(source + at + items * worlds, mask=used, other=0)
    z = tl.load(source + at + 2 * items * worlds, mask=used, other=0)
    return x, y, z


@triton.jit
def _power(cdof, first, x, y, z, nv, world, inside, worlds, N: tl.constexpr):
    """Inner products (ROWS, N, W) of vectors (ROWS, W) with components `first` to `first + 2` of all motion axes."""
    cdof += first * nv * worlds
    a = load_vector(cdof, nv, world, inside, worlds, N)
    b = load_vector(cdof + nv * worlds, nv, world, inside, worlds, N)
    c = load_vector(cdof + 2 * nv * worlds, nv, world, inside, worlds, N)
    return x[:, None, :] * a[None, :, :] + y[:, None, :] * b[None, :, :] + z[:, None, :] * c[None, :, :]


# ---- products


@triton.jit
def multiply(rows, x, target, from_aref: tl.constexpr):
    """J x, or J x - aref, to slots of the workspace."""
    N: tl.constexpr = x.shape[0]
    W: tl.constexpr = x.shape[1]
    tl.debug_barrier()
    for first in range(0, rows.count, ROWS):
        at = slots_at(first, W)
        product = tl.sum(tl.load(rows.jac + jac_at(first, N, W)) * x[None, :, :], 1)
        if from_aref:
            product -= tl.load(rows.aref + at)
        tl.store(target + at, product)
    tl.debug_barrier()


@triton.jit
def move(rows, alpha, done):
    """Residuals after a step `alpha` (W,) in the worlds that are not done."""
    W: tl.constexpr = alpha.shape[0]
    tl.debug_barrier()
    for first in range(0, rows.count, ROWS):
        at = slots_at(first, W)
        residual = tl.load(rows.residual + at)
        moved = residual + alpha[None, :] * tl.load(rows.rate + at)
        tl.store(rows.residual + at, tl.where(done[None, :], residual, moved))
    tl.debug_barrier()
