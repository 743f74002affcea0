"""Prints what `mjt bench` measured, for people, on stdout."""

from __future__ import annotations

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from mjt_cli.bench_report import BenchReport, Contestant
from mjt_cli.errors import one_line
from mjt_cli.render import console

COLUMNS = ("", "steps/s", "times real time", "to C", "memory a world", "compiling", "converged", "qvel error")
NOTHING = "-"


def print_bench(report: BenchReport) -> None:
    """Prints the setting, one row per contestant, and what else there is to know."""
    out = console()
    out.print(f"[bold]{escape(report.model)}[/bold]  {escape(_setting(report))}")
    if report.contestants:
        table = Table()
        for index, name in enumerate(COLUMNS):
            table.add_column(name, justify="right" if index else "left", no_wrap=index == 0)
        for contestant in report.contestants:
            table.add_row(*(escape(cell) for cell in _cells(contestant)))
        out.print(table)
    for line in _remarks(report):
        out.print(line, markup=False, highlight=False)
    for note in _notes(report):
        out.print(note, style="yellow", markup=False, highlight=False)


def _setting(report: BenchReport) -> str:
    size = report.model_size
    shape = f"nq {size.nq}, nv {size.nv}, nu {size.nu} | " if size else ""
    threads = f" | threads {report.threads}" if report.threads else ""
    where = f"{report.device}{threads} | {report.dtype} | batch {report.batch:,}"
    runs = f"{report.steps} steps, {report.rounds} rounds"
    return f"{shape}{where} | {runs} | mode {report.mode} | {report.caches} caches"


def _cells(result: Contestant) -> Iterable[str]:
    speed = result.speed
    yield result.name
    yield f"{speed.median:,.0f} ({speed.min:,.0f} to {speed.max:,.0f})" if speed else NOTHING
    yield NOTHING if result.realtime_factor is None else f"{result.realtime_factor:,.0f}"
    yield NOTHING if result.ratio_to_c is None else f"{result.ratio_to_c:.2f}"
    yield NOTHING if result.bytes_per_world is None else f"{result.bytes_per_world / 1024:,.1f} KiB"
    yield _compiling(result)
    yield NOTHING if result.converged is None else f"{100 * result.converged:.1f} %"
    yield NOTHING if result.qvel_error is None else f"{result.qvel_error:.1e}"


def _compiling(result: Contestant) -> str:
    if result.compile_seconds is None or result.compile_cpu_seconds is None:
        return NOTHING
    return f"{result.compile_seconds:.1f} s ({result.compile_cpu_seconds:.1f} s CPU)"


def _remarks(report: BenchReport) -> Iterable[str]:
    if report.contacts_per_world is not None:
        probe = f"tool-chain probe {report.toolchain_probe:.1f} s apart"
        yield f"{report.contacts_per_world:.1f} contacts a world at the start; {probe}"
    if report.load_average:
        cores = report.machine.get("cores", "?")
        yield f"load average {min(report.load_average):.1f} to {max(report.load_average):.1f} on {cores} cores"
    if report.machine:
        yield ", ".join(str(report.machine[key]) for key in ("processor", "system") if key in report.machine)
    if report.versions:
        yield ", ".join(f"{name} {version}" for name, version in report.versions.items())


def _notes(report: BenchReport) -> Iterable[str]:
    for note in report.notes:
        yield f"note: {note}"
    for result in report.contestants:
        for note in result.notes:
            yield f"note on {result.name}: {one_line(note)}"
