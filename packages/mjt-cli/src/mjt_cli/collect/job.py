"""What a worker is asked to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mjt_cli.bench_report import BenchReport
from mjt_cli.report import Report

# Of a job, what its report names otherwise or not at all.
NOT_REPORTED = ("path", "name", "blocks")


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
    blocks: bool = True

    def empty_report(self) -> Report:
        """The report of this job before anything was measured."""
        return Report(model=self.name, **_shared(self))


@dataclass(frozen=True)
class BenchJob:
    """What to measure."""

    path: str
    name: str
    mode: str
    device: str
    dtype: str
    batch: int
    steps: int
    rounds: int
    threads: int | None
    caches: str

    def empty_report(self) -> BenchReport:
        """The report of this job before anything was measured."""
        return BenchReport(model=self.name, **_shared(self))


def _shared(job: Job | BenchJob) -> dict[str, Any]:
    return {name: value for name, value in asdict(job).items() if name not in NOT_REPORTED}
