"""The operators as Triton kernels for CUDA; to be imported only where Triton is installed.

Each function takes and returns what its operator does (ops.py), contiguous or not. Nothing waits for the device, so all
of them can be captured in a CUDA graph, after one call outside of it that compiles the kernel and sends the tables.
"""

from .combine import combine
from .mass import factor_m, mass_matrix, solve_m
from .newton import solve

__all__ = ["combine", "factor_m", "mass_matrix", "solve", "solve_m"]
