"""The dynamics problem, worlds last: inertia, its factor, and the constraint solver, as operators of torch."""

from .dense import solve_dense
from .mass import full_m
from .ops import factor_m, mass_matrix, noslip, solve, solve_m
from .penalty import row_force
from .rows import jacobian, row_weight
from .system import RowKind, System

__all__ = [
    "RowKind",
    "System",
    "factor_m",
    "full_m",
    "jacobian",
    "mass_matrix",
    "noslip",
    "row_force",
    "row_weight",
    "solve",
    "solve_dense",
    "solve_m",
]
