"""The structure of a model's dynamics problem: what operators need to know that is the same in all worlds.

MuJoCo's names where it has them. Rows have C's order. First come the given rows, whose sparse Jacobian is handed to
the operators: equalities, friction losses, limits. Then come the rows of contacts. A contact without friction has one;
with pyramidal cones it has the edges of a pyramid, two for each axis beyond the normal; with elliptic cones a row for
each of its axes.
"""

import enum
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from mujoco_torch._src import kernels
from mujoco_torch._src.pattern import Pattern, content_key

if TYPE_CHECKING:
    from .parts import Part


class RowKind(enum.IntEnum):
    """What bounds the force of a given row."""

    EQUALITY = 0
    """nothing"""
    FRICTION = 1
    """the friction loss, on both sides"""
    LIMIT = 2
    """it only pushes"""


Side = tuple[int, tuple[tuple[int, int], ...]]
"""One side of a contact: the root body of its tree, and the dofs that move it, each with the sign of its motion."""


class System:
    """Structure of the inertia matrix and of the constraint rows; frozen, and interned by value.

    Attributes:
      nv, nbody: sizes of the model.
      M_rownnz, M_colind: the sparse inertia: of row i the dofs that i moves with, i itself last.
      dof_bodyid: body of each dof.
      given_kind: RowKind of each given row, increasing.
      given_dofs: the dofs that each given row may act on, increasing.
      contact_dim: condim of each contact.
      contact_sides: the sides of each contact; one where both bodies belong to one tree, two between trees.
      cone, solver: ConeType and SolverType, CG or Newton.
      tolerance, ls_tolerance, iterations, ls_iterations, noslip_tolerance, noslip_iterations: options of the solver.
      islands: whether `solve` takes trees that no constraint can join one by one.
      key: names the value in a compiled graph.
    """

    _interned: ClassVar[weakref.WeakValueDictionary[int, "System"]] = weakref.WeakValueDictionary()
    OPTIONS = (
        "cone", "solver", "tolerance", "ls_tolerance", "iterations", "ls_iterations", "noslip_iterations",
        "noslip_tolerance",
    )  # fmt: skip
    FIELDS = (
        "nv", "nbody", "M_rownnz", "M_colind", "dof_bodyid", "given_kind", "given_dofs", "contact_dim",
        "contact_sides", *OPTIONS, "islands",
    )  # fmt: skip
    DEFAULTS: ClassVar[dict] = dict(
        cone=0, solver=2, noslip_iterations=0, noslip_tolerance=1e-6, islands=False
    )

    def __new__(cls, **values) -> "System":
        values = cls.DEFAULTS | values
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
        """Raise unless given rows act on increasing dofs, and ancestors of ancestors are ancestors."""
        if len(self.given_kind) != len(self.given_dofs) or list(self.given_kind) != sorted(self.given_kind):
            raise ValueError(
                f"kinds {self.given_kind} of {len(self.given_dofs)} given rows; they must increase"
            )
        for dofs in self.given_dofs:
            if list(dofs) != sorted(set(dofs)) or not set(dofs) <= set(range(self.nv)):
                raise ValueError(f"a given row of dofs {dofs}; they must increase, from 0 to {self.nv - 1}")
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
    def ngiven(self) -> int:
        """Number of given rows."""
        return len(self.given_kind)

    @cached_property
    def given_start(self) -> tuple[int, ...]:
        """Where the values of each given row start, then their number."""
        return _starts([len(dofs) for dofs in self.given_dofs])

    @cached_property
    def given_dof(self) -> tuple[int, ...]:
        """The dof of each value of the given rows."""
        return tuple(dof for dofs in self.given_dofs for dof in dofs)

    @property
    def nJ(self) -> int:
        """Values in the given rows."""
        return len(self.given_dof)

    @property
    def ne(self) -> int:
        """Number of equality rows."""
        return self.given_kind.count(RowKind.EQUALITY)

    @property
    def nf(self) -> int:
        """Number of friction loss rows."""
        return self.given_kind.count(RowKind.FRICTION)

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
        return _starts([dim if dim == 1 or self.cone else 2 * (dim - 1) for dim in self.contact_dim])

    @property
    def rows(self) -> int:
        """Number of contact rows."""
        return self.contact_row[-1]

    @property
    def nefc(self) -> int:
        """Number of all rows."""
        return self.ngiven + self.rows

    @cached_property
    def row_axis(self) -> tuple[int, ...]:
        """The axis beside the normal that each contact row goes along, 0 without friction."""
        return tuple(axis for dim in self.contact_dim for axis in self._axes_of(dim))

    def _axes_of(self, dim: int) -> list[int]:
        if dim == 1 or self.cone:
            return [*range(dim)]
        return [k for k in range(1, dim) for _ in "+-"]

    @cached_property
    def row_contact(self) -> Pattern:
        """Selects the contact of each contact row."""
        return Pattern([(row, c, 1) for row, c in enumerate(self._row_owner)], (self.rows, self.contacts))

    @property
    def _row_owner(self) -> list[int]:
        return [c for c in range(self.contacts) for _ in self._rows_of(c)]

    def _rows_of(self, contact: int) -> range:
        return range(self.contact_row[contact], self.contact_row[contact + 1])

    @cached_property
    def _cones(self) -> list[int]:
        """The contacts whose force is in an elliptic cone."""
        return [c for c, dim in enumerate(self.contact_dim) if self.cone and dim > 1]

    @property
    def cones(self) -> int:
        """Number of elliptic cones."""
        return len(self._cones)

    @cached_property
    def cone_contacts(self) -> Pattern:
        """Selects the contact of each cone."""
        return Pattern([(i, c, 1) for i, c in enumerate(self._cones)], (self.cones, self.contacts))

    @cached_property
    def cone_rows(self) -> Pattern:
        """Selects the rows of all cones along the first axis, then along the second, and so on; zero beyond condim."""
        entries = [
            (axis * self.cones + i, self.ngiven + row, 1)
            for i, c in enumerate(self._cones)
            for axis, row in enumerate(self._rows_of(c))
        ]
        return Pattern(entries, (self.axes * self.cones, self.nefc))

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
    def given_place(self) -> Pattern:
        """Places the values of the given rows in dense ones, row by row."""
        rows = [row for row, dofs in enumerate(self.given_dofs) for _ in dofs]
        entries = [
            (row * self.nv + dof, e, 1) for e, (row, dof) in enumerate(zip(rows, self.given_dof, strict=True))
        ]
        return Pattern(entries, (self.ngiven * self.nv, self.nJ))

    @cached_property
    def given_col(self) -> Pattern:
        """Selects the dof of each value of the given rows."""
        return Pattern([(e, dof, 1) for e, dof in enumerate(self.given_dof)], (self.nJ, self.nv))

    @cached_property
    def given_sum(self) -> Pattern:
        """Sums what belongs to the values of each given row: J x = given_sum @ (given_jac * (given_col @ x))."""
        rows = [row for row, dofs in enumerate(self.given_dofs) for _ in dofs]
        return Pattern([(row, e, 1) for e, row in enumerate(rows)], (self.ngiven, self.nJ))

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
        """All patterns of a system, and of its parts."""
        sides = [pattern for side in self.numbered_sides for pattern in side]
        parts = [
            pattern for part in self.parts for pattern in (*part.system.patterns, *part.patterns.values())
        ]
        return (
            self.row_contact, self.given_place, self.given_col, self.given_sum, self.full_m, self.full_m_place,
            self.M_row, self.M_col, self.M_diagonal, self.dof_body, self.cone_contacts, self.cone_rows, *sides, *parts,
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

    @cached_property
    def parts(self) -> "tuple[Part, ...]":
        """What `solve` takes one by one; none if it takes all at once."""
        from .parts import partition  # which makes systems

        return partition(self) if self.islands else ()

    # The parts, one after the other, as the kernels read them.

    @property
    def part_key(self) -> list[int]:
        """The key of each part."""
        return [part.system.key for part in self.parts]

    @property
    def part_dof(self) -> list[int]:
        """The dofs of all parts."""
        return [dof for part in self.parts for dof in part.dofs]

    @property
    def part_given(self) -> list[int]:
        """The given rows of all parts."""
        return [row for part in self.parts for row in part.given]

    @property
    def part_contact(self) -> list[int]:
        """The contacts of all parts."""
        return [contact for part in self.parts for contact in part.contacts]

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
        return f"System(nv={self.nv}, given={self.ngiven}, contacts={self.contacts}, key={self.key})"


def _starts(counts: Sequence[int]) -> tuple[int, ...]:
    total, starts = 0, [0]
    for count in counts:
        total += count
        starts.append(total)
    return tuple(starts)


def _restore(values: dict) -> System:
    return System(**values)
