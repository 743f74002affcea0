"""The structure of a model's dynamics problem: what operators need to know that is the same in all worlds.

MuJoCo's names where it has them. Constraints are the limits of joints, then contacts, each in C's order. A limit acts
on one dof, or on the three of a ball joint, and has one row. A contact has one row (no friction) or the edges of a
pyramid, two for each axis beyond the normal.
"""

import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from mujoco_torch._src import kernels
from mujoco_torch._src.pattern import Pattern, content_key

Side = tuple[int, tuple[tuple[int, int], ...]]
"""One side of a contact: the root body of its tree, and the dofs that move it, each with the sign of its motion."""


class System:
    """Structure of the inertia matrix and of the constraint rows; frozen, and interned by value.

    Attributes:
      nv, nbody: sizes of the model.
      M_rownnz, M_colind: the sparse inertia: of row i the dofs that i moves with, i itself last.
      dof_bodyid: body of each dof.
      limit_dof, limit_size: first dof of each limit, and how many it acts on (1 or 3).
      contact_dim: condim of each contact.
      contact_sides: the sides of each contact; one where both bodies belong to one tree, two between trees.
      tolerance, ls_tolerance, iterations, ls_iterations: options of the solver.
      key: names the value in a compiled graph.
    """

    _interned: ClassVar[weakref.WeakValueDictionary[int, "System"]] = weakref.WeakValueDictionary()
    FIELDS = (
        "nv", "nbody", "M_rownnz", "M_colind", "dof_bodyid", "limit_dof", "limit_size", "contact_dim",
        "contact_sides", "tolerance", "ls_tolerance", "iterations", "ls_iterations",
    )  # fmt: skip

    def __new__(cls, **values) -> "System":
        if set(values) != set(cls.FIELDS):
            raise TypeError(f"System takes {cls.FIELDS}, not {tuple(values)}")
        key = content_key(sorted(values.items()))
        if key in cls._interned:
            return cls._interned[key]
        self = super().__new__(cls)
        self.__dict__.update(values, key=key)
        self._check()
        cls._interned[key] = self
        kernels.tell_system(key, self)
        return self

    @classmethod
    def of(cls, key: int) -> "System":
        """The system of a model that is alive."""
        return cls._interned[key]

    def _check(self) -> None:
        """Raise unless every limit acts on one dof or three, and ancestors of ancestors are ancestors."""
        for dof, size in zip(self.limit_dof, self.limit_size, strict=True):
            if size not in (1, 3) or not 0 <= dof <= self.nv - size:
                raise ValueError(
                    f"a limit of size {size} at dof {dof}; sizes are 1 and 3, dofs below {self.nv}"
                )
        rows = self.M_rows
        for i, row in enumerate(rows):
            if not row or row[-1] != i or any(rows[j] != row[: at + 1] for at, j in enumerate(row)):
                raise ValueError(f"row {i} of the inertia is {row}, which is not the path of a tree")

    @cached_property
    def M_rowadr(self) -> tuple[int, ...]:
        """Where each row of the inertia starts."""
        return _starts(self.M_rownnz)[:-1]

    @property
    def nC(self) -> int:
        """Elements of the sparse inertia."""
        return len(self.M_colind)

    @property
    def M_rows(self) -> list[tuple[int, ...]]:
        """The columns of each row of the inertia."""
        return [
            self.M_colind[start : start + n] for start, n in zip(self.M_rowadr, self.M_rownnz, strict=True)
        ]

    @property
    def limits(self) -> int:
        """Number of limits."""
        return len(self.limit_dof)

    @property
    def contacts(self) -> int:
        """Number of contacts."""
        return len(self.contact_dim)

    @property
    def axes(self) -> int:
        """Axes that the contact with most of them has."""
        return max(self.contact_dim, default=1)

    @cached_property
    def contact_row(self) -> tuple[int, ...]:
        """First contact row of each contact, then their number."""
        return _starts([1 if dim == 1 else 2 * (dim - 1) for dim in self.contact_dim])

    @property
    def rows(self) -> int:
        """Number of contact rows."""
        return self.contact_row[-1]

    @cached_property
    def row_axis(self) -> tuple[int, ...]:
        """The axis beside the normal that each contact row goes along, 0 without friction."""
        edges = [[0] if dim == 1 else [k for k in range(1, dim) for _ in "+-"] for dim in self.contact_dim]
        return tuple(axis for axes in edges for axis in axes)

    @cached_property
    def row_contact(self) -> Pattern:
        """Selects the contact of each contact row."""
        return Pattern([(row, c, 1) for row, c in enumerate(self._row_owner)], (self.rows, self.contacts))

    @cached_property
    def row_constraint(self) -> Pattern:
        """Selects the constraint of each row."""
        owners = [*range(self.limits), *(self.limits + c for c in self._row_owner)]
        shape = (len(owners), self.limits + self.contacts)
        return Pattern([(row, owner, 1) for row, owner in enumerate(owners)], shape)

    @property
    def _row_owner(self) -> list[int]:
        return [c for c in range(self.contacts) for _ in self._rows_of(c)]

    def _rows_of(self, contact: int) -> range:
        return range(self.contact_row[contact], self.contact_row[contact + 1])

    @cached_property
    def numbered_sides(self) -> list[tuple[Pattern, Pattern]]:
        """Of the first side of every contact, then of the second where there is one: root body, dofs of the rows."""
        most = max((len(sides) for sides in self.contact_sides), default=0)
        return [self._numbered(number) for number in range(most)]

    def _numbered(self, number: int) -> tuple[Pattern, Pattern]:
        sides = [(c, *sides[number]) for c, sides in enumerate(self.contact_sides) if number < len(sides)]
        roots = [(c, root, 1) for c, root, _ in sides]
        moved = [
            (row, dof, sign) for c, _, columns in sides for row in self._rows_of(c) for dof, sign in columns
        ]
        return Pattern(roots, (self.contacts, self.nbody)), Pattern(moved, (self.rows, self.nv))

    @cached_property
    def limit_place(self) -> Pattern:
        """Places the axes of limits, component by component, in their rows of J."""
        entries = [
            (limit * self.nv + dof + k, k * self.limits + limit, 1)
            for limit, (dof, size) in enumerate(zip(self.limit_dof, self.limit_size, strict=True))
            for k in range(size)
        ]
        return Pattern(entries, (self.limits * self.nv, 3 * self.limits))

    @cached_property
    def full_m(self) -> Pattern:
        """Spreads the sparse inertia into the dense matrix, row by row."""
        entries = [
            (a * self.nv + b, start + e, 1)
            for i, (start, row) in enumerate(zip(self.M_rowadr, self.M_rows, strict=True))
            for e, j in enumerate(row)
            for a, b in {(i, j), (j, i)}
        ]
        return Pattern(entries, (self.nv * self.nv, self.nC))

    @cached_property
    def full_m_place(self) -> Pattern:
        """Selects the elements of the sparse inertia from a dense matrix, row by row."""
        places = [i * self.nv + j for i, row in enumerate(self.M_rows) for j in row]
        return Pattern([(e, place, 1) for e, place in enumerate(places)], (self.nC, self.nv * self.nv))

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """All patterns of a system."""
        sides = [pattern for side in self.numbered_sides for pattern in side]
        return (
            self.row_contact, self.row_constraint, self.limit_place, self.full_m, self.full_m_place, self.M_row,
            self.M_col, self.M_diagonal, self.dof_body, *sides,
        )  # fmt: skip

    @cached_property
    def M_row(self) -> Pattern:
        """Selects the row's dof for each element of the sparse inertia."""
        return Pattern([(e, i, 1) for e, i in enumerate(self._row_of_element())], (self.nC, self.nv))

    @cached_property
    def M_col(self) -> Pattern:
        """Selects the column's dof for each element of the sparse inertia."""
        return Pattern([(e, j, 1) for e, j in enumerate(self.M_colind)], (self.nC, self.nv))

    @cached_property
    def M_diagonal(self) -> Pattern:
        """Places a value for each dof on the diagonal of the sparse inertia."""
        ends = [start + n - 1 for start, n in zip(self.M_rowadr, self.M_rownnz, strict=True)]
        return Pattern([(end, i, 1) for i, end in enumerate(ends)], (self.nC, self.nv))

    @cached_property
    def dof_body(self) -> Pattern:
        """Selects the body of each dof."""
        return Pattern([(i, b, 1) for i, b in enumerate(self.dof_bodyid)], (self.nv, self.nbody))

    def _row_of_element(self) -> list[int]:
        return [i for i, n in enumerate(self.M_rownnz) for _ in range(n)]

    # The sides of all contacts, one after the other, as the kernels read them.

    @property
    def side_start(self) -> tuple[int, ...]:
        """Where the sides of each contact start, then their number."""
        return _starts([len(sides) for sides in self.contact_sides])

    @property
    def _sides(self) -> list[Side]:
        return [side for sides in self.contact_sides for side in sides]

    @property
    def side_root(self) -> tuple[int, ...]:
        """Root body of the tree of each side."""
        return tuple(root for root, _ in self._sides)

    @property
    def column_start(self) -> tuple[int, ...]:
        """Where the dofs of each side start, then their number."""
        return _starts([len(columns) for _, columns in self._sides])

    @property
    def column_dof(self) -> tuple[int, ...]:
        """The dofs of all sides."""
        return tuple(dof for _, columns in self._sides for dof, _ in columns)

    @property
    def column_sign(self) -> tuple[int, ...]:
        """Signs of the dofs of all sides."""
        return tuple(sign for _, columns in self._sides for _, sign in columns)

    def __reduce__(self):
        return _restore, ({name: getattr(self, name) for name in self.FIELDS},)

    def __repr__(self) -> str:
        return f"System(nv={self.nv}, limits={self.limits}, contacts={self.contacts}, key={self.key})"


def _starts(counts: Sequence[int]) -> tuple[int, ...]:
    total, starts = 0, [0]
    for count in counts:
        total += count
        starts.append(total)
    return tuple(starts)


def _restore(values: dict) -> System:
    return System(**values)
