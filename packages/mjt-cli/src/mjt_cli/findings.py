"""Turns the numbers of a report into findings, and findings into an exit code."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mjt_cli.errors import ExitCode, one_line
from mjt_cli.report import Comparison, Finding, Overhead, Report

BLOCKS = "mujoco_torch.compile"


def findings(report: Report) -> list[Finding]:
    """Every finding of a report, in the order of `FINDING_KINDS`."""
    rules = (_graph_breaks, _recompilations, _guards, _overhead, _parity, _nan, _cuda_graphs, _mismatch)
    return [finding for rule in rules for finding in rule(report)]


def exit_code(report: Report, fail_on: Collection[str]) -> ExitCode:
    """`FINDINGS` where a finding is of a kind in `fail_on` or the run itself failed, else `CLEAN`."""
    failing = {"failed", *fail_on}
    return ExitCode.FINDINGS if any(f.kind in failing for f in report.findings) else ExitCode.CLEAN


def _graph_breaks(report: Report) -> Iterator[Finding]:
    for broken in report.graph_breaks:
        yield Finding("graph-break", f"graph break during the {broken.call}: {one_line(broken.reason, 200)}")
    if report.life and report.graphs != 1 and not report.graph_breaks:
        yield Finding("graph-break", f"the step was compiled into {report.graphs} graphs instead of one")


def _recompilations(report: Report) -> Iterator[Finding]:
    for again in report.recompilations:
        message = f"{again.frame} was compiled again by the {again.call}: {one_line(again.reason, 200)}"
        yield Finding("recompile", message)
    for again in report.blocks.recompilations if report.blocks else []:
        message = f"{BLOCKS}: {again.frame} was compiled by the {again.call}: {one_line(again.reason, 200)}"
        yield Finding("recompile", message)


def _guards(report: Report) -> Iterator[Finding]:
    budget = report.guards.budget
    for name in dict.fromkeys(frame.frame for frame in report.guards.frames):
        count = max(frame.count for frame in report.guards.frames if frame.frame == name)
        if count > budget:
            yield Finding("guards", f"{name} has {count} guards, more than {budget}")
    if report.blocks and report.blocks.guards:
        yield Finding(
            "guards", f"{BLOCKS}: the pieces have {report.blocks.guards} guards, and should have none"
        )


def _overhead(report: Report) -> Iterator[Finding]:
    yield from _too_long("of a call are outside kernels", report.overhead)
    if report.blocks:
        yield from _too_long(f"of a call of {BLOCKS} are outside its pieces", report.blocks.overhead)


def _too_long(what: str, overhead: Overhead | None) -> Iterator[Finding]:
    spent = overhead.microseconds if overhead else None
    if overhead and spent is not None and spent > overhead.budget:
        yield Finding("overhead", f"{spent:.0f} us {what}, more than {overhead.budget:.0f} us")


def _parity(report: Report) -> Iterator[Finding]:
    yield from _comparison("parity", "one step differs from MuJoCo C", report.parity)


def _nan(report: Report) -> Iterator[Finding]:
    if report.nan_worlds:
        yield Finding(
            "nan", f"the state of {report.nan_worlds} of {report.batch} worlds was not finite in these steps"
        )


def _cuda_graphs(report: Report) -> Iterator[Finding]:
    for skip in report.cuda_graphs.skips if report.cuda_graphs else []:
        yield Finding("cudagraph-skip", f"CUDA graphs were skipped: {one_line(skip, 200)}")


def _mismatch(report: Report) -> Iterator[Finding]:
    yield from _comparison("compiled-mismatch", "compiled and eager differ", report.compiled_vs_eager)
    if report.blocks:
        what = f"{BLOCKS} and eager differ"
        yield from _comparison("compiled-mismatch", what, report.blocks.compiled_vs_eager)


def _comparison(kind: str, what: str, comparison: Comparison | None) -> Iterator[Finding]:
    if comparison and not comparison.within:
        worst = "not a number" if comparison.worst is None else f"{comparison.worst:.1e}"
        field = comparison.worst_field
        yield Finding(kind, f"{what}: {field} by {worst}, more than {comparison.tolerance:.0e} (relative)")
