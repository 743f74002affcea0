"""What a worker is asked to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from mjt_cli.report import Report


@dataclass(frozen=True)
class Job:
    """What to diagnose."""

    path: str
    name: str
    mode: str
    backend: str
    device: str
    dtype: str
    batch: int
    steps: int
    threads: int | None
    caches: str

    def empty_report(self) -> Report:
        """The report of this job before anything was measured."""
        shared = {name: value for name, value in asdict(self).items() if name not in ("path", "name")}
        return Report(model=self.name, **shared)
