"""Errors raised at the border of the library.

All derive from `MujocoTorchError`, itself a `ValueError`. A message names the value found, what is allowed
and the next step. Nothing is raised inside a step: a compiled step cannot raise on data.
"""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from collections.abc import Iterable

    from mujoco_torch._src.check import Finding


class MujocoTorchError(ValueError):
    """Base of the errors of this library."""


class ArgumentError(MujocoTorchError):
    """An argument other than a state is not usable: dtype, device, number of worlds, name of a model."""


class StateError(MujocoTorchError):
    """A state does not fit its model: shape, dtype, device or batch size differ, or a value is NaN."""


class UnsupportedModelError(MujocoTorchError):
    """The model uses features that are not simulated exactly; the message lists all of them, one per line.

    Attributes:
      findings: what `check` reported, in its order, never empty.
    """

    def __init__(self, findings: Iterable[Finding]):
        self.findings = tuple(findings)
        count = len(self.findings)
        head = f"this release does not simulate the model exactly, {count} finding{'s' * (count != 1)}:"
        super().__init__("\n".join([head, *(f"  {finding}" for finding in self.findings)]))

    def __reduce__(self):
        # Rebuilt from its findings, so that it crosses process borders whole.
        return type(self), (self.findings,)
