"""The outcome of `mjt check` for one model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import mujoco_torch as mjt
from mjt_cli.errors import ExitCode


@dataclass(frozen=True)
class Verdict:
    """Findings of one model, or `error`: why it could not be read."""

    model: str
    path: str | None
    findings: tuple[mjt.Finding, ...] = ()
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The form of one entry of `mjt check --json`."""
        supported = not self.findings and self.error is None
        findings = [asdict(finding) for finding in self.findings]
        return {"model": self.model, "path": self.path, "supported": supported, "error": self.error} | {
            "findings": findings
        }


def exit_code(verdicts: list[Verdict]) -> ExitCode:
    """`BAD_USE` where a model could not be read, else `NOT_SUPPORTED` where one is refused."""
    if any(verdict.error for verdict in verdicts):
        return ExitCode.BAD_USE
    return ExitCode.NOT_SUPPORTED if any(verdict.findings for verdict in verdicts) else ExitCode.CLEAN
