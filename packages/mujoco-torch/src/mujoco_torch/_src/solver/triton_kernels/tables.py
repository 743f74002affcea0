"""Constant tensors on a device: the structure of a System, and what else is kept with a value."""

import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..system import System
from .launch import padded

# Tensors live as long as their owner: a captured CUDA graph knows their addresses. No lock: the worst that two threads
# can do is to make the same tensors twice, and the first ones stay.
_kept: weakref.WeakKeyDictionary[Any, dict[Hashable, Any]] = weakref.WeakKeyDictionary()

_T = TypeVar("_T")


@dataclass(frozen=True)
class Tables:
    """Structure of a system, int32 unless it says otherwise; N is nv, padded.

    Attributes:
      element: (N, N), where M[i, j] and M[j, i] stand in the sparse inertia, -1 where they are zero.
      M_rowadr, M_colind, dof_bodyid: as in `System`; M_rowadr has the number of elements at its end.
      constraint_row: (ngiven + contacts + 1,), the first row of each constraint, then the number of rows.
      row_constraint: (rows,), the constraint of each row.
      given_at: (ngiven, N), where the value of a given row and dof stands, -1 where there is none.
      side_root: (contacts, sides), root body of the tree of each side, 0 where there is no such side.
      side_moved: (contacts, sides, N) int8, 1 or -1 where a dof moves a side of a contact, else 0.
    """

    element: Tensor
    M_rowadr: Tensor
    M_colind: Tensor
    dof_bodyid: Tensor
    constraint_row: Tensor
    row_constraint: Tensor
    given_at: Tensor
    side_root: Tensor
    side_moved: Tensor


def kept(owner: object, kind: Hashable, make: Callable[[], _T]) -> _T:
    """Tensors of a kind that belong to a value, made at the first call.

    They are made in a thread of their own: while a compiled step records its CUDA graphs, what its thread allocates
    belongs to the graphs, and would be reused by them.
    """
    known = _kept.setdefault(owner, {})
    if kind not in known:
        with ThreadPoolExecutor(1) as executor:
            known.setdefault(kind, executor.submit(make).result())
    return known[kind]


def tables_of(system: System, device: torch.device) -> Tables:
    """The tables of a system on a device."""
    return kept(system, device, lambda: _make(system, device))


def _make(system: System, device: torch.device) -> Tables:
    given = system.ngiven
    constraint_row = [*range(given), *(given + row for row in system.contact_row)]
    owner = [c for c, (first, end) in enumerate(pairwise(constraint_row)) for _ in range(first, end)]
    root, moved = _sides(system)
    numbers = {
        "element": _elements(system),
        "M_rowadr": [*system.M_rowadr, system.nC],
        "M_colind": system.M_colind,
        "dof_bodyid": system.dof_bodyid,
        "constraint_row": constraint_row,
        "row_constraint": owner,
        "given_at": _given_values(system),
        "side_root": root,
    }
    tensors = {name: torch.as_tensor(x, dtype=torch.int32).to(device) for name, x in numbers.items()}
    return Tables(**tensors, side_moved=moved.to(device))


def _elements(system: System) -> Tensor:
    n = padded(system.nv)
    element = torch.full((n, n), -1, dtype=torch.int32)
    for i, (start, row) in enumerate(zip(system.M_rowadr, system.M_rows, strict=True)):
        for e, j in enumerate(row):
            element[i, j] = element[j, i] = start + e
    return element


def _given_values(system: System) -> Tensor:
    at = torch.full((system.ngiven, padded(system.nv)), -1, dtype=torch.int32)
    for row, (start, dofs) in enumerate(zip(system.given_start, system.given_dofs, strict=False)):
        for e, dof in enumerate(dofs):
            at[row, dof] = start + e
    return at


def sides_of(system: System) -> int:
    """The sides that the contact with most of them has."""
    return max((len(sides) for sides in system.contact_sides), default=0)


def _sides(system: System) -> tuple[Tensor, Tensor]:
    shape = (system.contacts, sides_of(system))
    root = torch.zeros(shape, dtype=torch.int32)
    moved = torch.zeros((*shape, padded(system.nv)), dtype=torch.int8)
    for contact, sides in enumerate(system.contact_sides):
        for number, (body, columns) in enumerate(sides):
            root[contact, number] = body
            for dof, sign in columns:
                moved[contact, number, dof] = sign
    return root, moved
