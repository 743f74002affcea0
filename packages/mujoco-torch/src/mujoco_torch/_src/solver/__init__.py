"""Linear solves and the constraint solver, worlds last: registered operators with a reference and a CPU kernel."""

from .ops import chol_factor, chol_solve, hessian_solve, solve
from .rows import jacobian

__all__ = ["chol_factor", "chol_solve", "hessian_solve", "jacobian", "solve"]
