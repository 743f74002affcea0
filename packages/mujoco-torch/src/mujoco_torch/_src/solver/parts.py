"""Parts of a system: trees that no constraint can ever join, which are solved one by one.

C splits each world into islands while it runs. A part holds the islands of the same trees in all worlds.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from mujoco_torch._src.pattern import Pattern

from .arguments import BY_AXIS, Arguments
from .system import System


class Part:
    """A system within a whole one, and which of its dofs, given rows and contacts each of its own is."""

    def __init__(
        self, whole: System, dofs: Sequence[int], given: Sequence[int], contacts: Sequence[int]
    ) -> None:
        self.dofs, self.given, self.contacts = dofs, given, contacts
        self.system = _system(whole, dofs, given, contacts)
        rows = [row for c in contacts for row in range(*whole.contact_row[c : c + 2])]
        losses = [row - whole.ne for row in given if whole.ne <= row < whole.ne + whole.nf]
        elements = [e for i in dofs for e in range(whole.M_rowadr[i], whole.M_rowadr[i] + whole.M_rownnz[i])]
        self._selected = dict(
            dof=(dofs, whole.nv),
            element=(elements, whole.nC),
            value=([e for row in given for e in range(*whole.given_start[row : row + 2])], whole.nJ),
            given=(given, whole.ngiven),
            contact=(contacts, whole.contacts),
            row=(rows, whole.rows),
            any_row=([*given, *(whole.ngiven + row for row in rows)], whole.nefc),
            loss=(losses, whole.nf),
        )

    @cached_property
    def patterns(self) -> dict[str, Pattern]:
        """Select what belongs to the part: dofs, elements of M, values of given rows, and so on."""
        return {
            name: Pattern([(i, item, 1) for i, item in enumerate(items)], (len(items), count))
            for name, (items, count) in self._selected.items()
        }

    def arguments(self, whole: Arguments) -> Arguments:
        """Those of the part."""
        own = {
            name: self.patterns[_OWNERS[name]] @ x if name in _OWNERS else x
            for name, x in whole._asdict().items()
        }
        return Arguments(**own | {name: own[name][: self.system.axes] for name in BY_AXIS})


_OWNERS = dict(
    M="element", cdof="dof", contact_pos="contact", contact_frame="contact", row_edge="row", given_jac="value",
    given_D="given", given_ref="given", contact_D="contact", contact_ref="contact", row_scale="row",
    cone_friction="contact", damping="any_row", frictionloss="loss", qvel="dof", qfrc_smooth="dof", qacc_smooth="dof",
    qacc_warmstart="dof",
)  # fmt: skip
"""What the arguments are of; bodies are those of the whole."""


def partition(whole: System) -> tuple[Part, ...]:
    """The parts of a system; none where there would be one."""
    columns = [{dof for _, side in sides for dof, _ in side} for sides in whole.contact_sides]
    number = _components(whole.nv, [*whole.M_rows, *whole.given_dofs, *columns])
    count = max(number, default=0) + 1
    if count == 1:
        return ()
    members = [([], [], []) for _ in range(count)]
    for dof, part in enumerate(number):
        members[part][0].append(dof)
    for kind, owners in ((1, whole.given_dofs), (2, columns)):
        for i, dofs in enumerate(owners):
            for dof in list(dofs)[:1]:  # what moves nothing belongs to no part
                members[number[dof]][kind].append(i)
    return tuple(Part(whole, *some) for some in members)


def _system(whole: System, dofs: Sequence[int], given: Sequence[int], contacts: Sequence[int]) -> System:
    at, rows = {dof: i for i, dof in enumerate(dofs)}, whole.M_rows
    return System(
        **{name: getattr(whole, name) for name in ("nbody", *System.OPTIONS)},
        nv=len(dofs),
        M_rownnz=tuple(whole.M_rownnz[i] for i in dofs),
        M_colind=tuple(at[j] for i in dofs for j in rows[i]),
        dof_bodyid=tuple(whole.dof_bodyid[i] for i in dofs),
        given_kind=tuple(whole.given_kind[r] for r in given),
        given_dofs=tuple(tuple(at[i] for i in whole.given_dofs[r]) for r in given),
        contact_dim=tuple(whole.contact_dim[c] for c in contacts),
        contact_sides=tuple(
            tuple((root, tuple((at[i], sign) for i, sign in side)) for root, side in whole.contact_sides[c])
            for c in contacts
        ),
    )


Results = tuple[Tensor, Tensor, Tensor]


def by_parts(solve: Callable[[System, Arguments], Results]) -> Callable[..., Results]:
    """The operator `solve` by a function of one part; niter is that of the slowest."""

    @functools.wraps(solve)
    def operator(*arguments) -> Results:
        *tensors, key = arguments
        system, given = System.of(key), Arguments(*tensors)
        if not system.parts:
            return solve(system, given)
        solved = [solve(part.system, part.arguments(given)) for part in system.parts]
        qacc, qfrc_constraint, niter = zip(*solved, strict=True)
        return (
            _joined(system.parts, qacc),
            _joined(system.parts, qfrc_constraint),
            functools.reduce(torch.maximum, niter),
        )

    return operator


def _joined(parts: Sequence[Part], values: Sequence[Tensor]) -> Tensor:
    first, *others = (part.patterns["dof"].T @ x for part, x in zip(parts, values, strict=True))
    return sum(others, first)


def _components(count: int, joined: Iterable[Iterable[int]]) -> list[int]:
    """For each of `count` items the number of its component, where sets of items are joined; in order of the items."""
    up = list(range(count))

    def root(i: int) -> int:
        while up[i] != i:
            up[i] = i = up[up[i]]
        return i

    for items in joined:
        roots = [root(i) for i in items]
        for other in roots[1:]:
            up[root(other)] = root(roots[0])
    numbers: dict[int, int] = {}
    return [numbers.setdefault(root(i), len(numbers)) for i in range(count)]
