"""The dynamics problem, worlds last: inertia, its factor, and the constraint solver, as operators of torch."""

from .dense import solve_dense
from .mass import full_m
from .ops import factor_m, mass_matrix, solve, solve_m
from .rows import jacobian
from .system import System

__all__ = ["System", "factor_m", "full_m", "jacobian", "mass_matrix", "solve", "solve_dense", "solve_m"]
