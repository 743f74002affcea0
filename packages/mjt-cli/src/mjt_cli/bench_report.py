"""What `mjt bench` measured, as plain values: the worker fills a `BenchReport`, the parent prints it.

Its JSON form, of docs/cli.md, has a `schema_version` of its own.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field

from mjt_cli.report import ModelSize, build

BENCH_SCHEMA_VERSION = 1


@dataclass
class Speed:
    """Steps of all worlds together per second, over the rounds."""

    median: float
    min: float
    max: float


@dataclass
class Contestant:
    """One way to make the steps. A value that does not apply, or was not reached, is null.

    `steps_per_second` has one number a round, `ratio_to_c` is the median over the rounds of this speed to that of
    MuJoCo C in the same round, `bytes_per_world` the rise of resident memory (on a GPU: of its memory) during a run.
    Seconds of compiling are those of the first call.
    """

    name: str
    device: str
    threads: int
    compile_seconds: float | None = None
    compile_cpu_seconds: float | None = None
    bytes_per_world: float | None = None
    steps_per_second: list[float] = field(default_factory=list)
    speed: Speed | None = None
    realtime_factor: float | None = None
    ratio_to_c: float | None = None
    converged: float | None = None
    qvel_error: float | None = None
    notes: list[str] = field(default_factory=list)


@dataclass
class BenchReport:
    """Everything one run of `mjt bench` learned; `error` says why it did not come to its end."""

    model: str
    mode: str
    device: str
    dtype: str
    batch: int
    steps: int
    rounds: int
    threads: int | None = None
    caches: str = "cold"
    schema_version: int = BENCH_SCHEMA_VERSION
    model_size: ModelSize | None = None
    timestep: float | None = None
    contacts_per_world: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str | int] = field(default_factory=dict)
    load_average: list[float] = field(default_factory=list)
    toolchain_probe: float = 0.0
    contestants: list[Contestant] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str | None = None


def bench_from_json(text: str) -> BenchReport:
    """The report that `to_json` wrote."""
    return build(BenchReport, json.loads(text))


def summarize(report: BenchReport, reference: Contestant | None) -> None:
    """Works out speed, realtime factor and ratio of each contestant from the rounds so far."""
    for contestant in report.contestants:
        rates = contestant.steps_per_second
        if not rates:
            continue
        contestant.speed = Speed(statistics.median(rates), min(rates), max(rates))
        contestant.realtime_factor = contestant.speed.median * (report.timestep or 0.0)
        if reference and reference.steps_per_second:
            pairs = zip(rates, reference.steps_per_second, strict=False)
            contestant.ratio_to_c = statistics.median(ours / c for ours, c in pairs)
