"""Reports: to JSON and back, to findings, to exit codes."""

from __future__ import annotations

import json
import math

import pytest

from mjt_cli.choices import DEFAULT_FAIL_ON, parse_fail_on
from mjt_cli.errors import CliError, ExitCode, one_line
from mjt_cli.findings import exit_code, findings
from mjt_cli.report import (
    FINDING_KINDS,
    Blocks,
    Comparison,
    Finding,
    FrameGuards,
    GraphBreak,
    Overhead,
    Recompilation,
    Report,
    dumps,
    from_json,
    to_json,
)

REQUIRED_KEYS = {
    "schema_version",
    "model",
    "mode",
    "device",
    "dtype",
    "batch",
    "graphs",
    "graph_breaks",
    "recompilations",
    "guards",
    "compile_seconds",
    "steps_per_second",
    "parity",
    "findings",
}


def test_json_has_the_promised_keys(clean_report: Report):
    plain = json.loads(to_json(clean_report))
    assert REQUIRED_KEYS <= set(plain)
    assert next(iter(plain)) == "schema_version"
    assert plain["schema_version"] == 1
    assert isinstance(plain["graph_breaks"], list)
    assert isinstance(plain["recompilations"], list)
    assert set(plain["compile_seconds"]) == {
        "dynamo",
        "aot_autograd",
        "inductor",
        "code_gen",
        "cpp_or_triton",
        "toolchain_probe",
        "total",
    }


def test_json_round_trip(clean_report: Report):
    clean_report.graph_breaks.append(GraphBreak("print", ["a.py:1 in f: print()"], "first step"))
    clean_report.recompilations.append(Recompilation("step", "masked reset", "stride"))
    clean_report.findings = findings(clean_report)
    assert from_json(to_json(clean_report)) == clean_report


def test_json_holds_no_nan():
    assert json.loads(dumps({"a": math.nan, "b": [math.inf, 1.0]})) == {"a": None, "b": [None, 1.0]}


def test_a_report_of_a_run_that_stopped_early_survives_json():
    report = Report("m", "default", "cpu", "float64", 1, 1)
    assert from_json(to_json(report)) == report


def test_clean_report_has_no_findings(clean_report: Report):
    assert findings(clean_report) == []


def spoil(report: Report, kind: str) -> None:
    """Makes a report deserve one finding of this kind."""
    spoiled = {
        "graph-break": lambda: report.graph_breaks.append(GraphBreak("print()", [], "first step")),
        "recompile": lambda: report.recompilations.append(Recompilation("step", "masked reset", "stride")),
        "guards": lambda: report.guards.frames.append(FrameGuards("step", "0/1", 251, None)),
        "overhead": lambda: setattr(report, "overhead", Overhead(301.0, "by a test")),
        "parity": lambda: setattr(report, "parity", Comparison({"qacc": 2e-6}, 1e-6, 8)),
        "nan": lambda: setattr(report, "nan_worlds", 1),
        "cudagraph-skip": lambda: report.cuda_graphs and report.cuda_graphs.skips.append("mutated inputs"),
        "compiled-mismatch": lambda: setattr(
            report, "compiled_vs_eager", Comparison({"qacc": 1e-11}, 1e-12, 8)
        ),
    }
    spoiled[kind]()


@pytest.mark.parametrize("kind", [kind for kind in FINDING_KINDS if kind != "failed"])
def test_each_kind_of_finding(clean_report: Report, kind: str):
    spoil(clean_report, kind)
    (finding,) = findings(clean_report)
    assert finding.kind == kind
    assert "\n" not in finding.message


def spoil_blocks(blocks: Blocks, kind: str) -> None:
    """Makes the blocks deserve one finding of this kind."""
    again = Recompilation("piece_1", "3 steps in one call", "this piece had not run before")
    spoiled = {
        "recompile": lambda: blocks.recompilations.append(again),
        "guards": lambda: setattr(blocks, "guards", 1),
        "overhead": lambda: setattr(blocks, "overhead", Overhead(301.0, "by a test")),
        "compiled-mismatch": lambda: setattr(
            blocks, "compiled_vs_eager", Comparison({"qacc": 1e-11}, 1e-12, 8)
        ),
    }
    spoiled[kind]()


@pytest.mark.parametrize("kind", ["recompile", "guards", "overhead", "compiled-mismatch"])
def test_findings_of_blocks(clean_report: Report, kind: str):
    assert clean_report.blocks
    spoil_blocks(clean_report.blocks, kind)
    (finding,) = findings(clean_report)
    assert finding.kind == kind
    assert "mujoco_torch.compile" in finding.message


@pytest.mark.parametrize("graphs", [0, 2])
def test_other_than_one_graph_is_a_finding(clean_report: Report, graphs: int):
    clean_report.graphs = graphs
    assert [finding.kind for finding in findings(clean_report)] == ["graph-break"]


@pytest.mark.parametrize("error", [math.nan, None])
def test_no_number_is_worse_than_any_number(error: float | None):
    comparison = Comparison({"qpos": 1e9, "qacc": error}, 1e-6, 1)
    assert comparison.worst_field == "qacc"
    assert not comparison.within


@pytest.mark.parametrize("kind", FINDING_KINDS)
def test_exit_code_follows_fail_on(clean_report: Report, kind: str):
    clean_report.findings = [Finding(kind, "x")]
    assert exit_code(clean_report, {kind}) == ExitCode.FINDINGS
    unlisted = ExitCode.FINDINGS if kind == "failed" else ExitCode.CLEAN
    assert exit_code(clean_report, set()) == unlisted


def test_fail_on_is_a_comma_list():
    assert parse_fail_on(" guards, nan ,") == {"guards", "nan"}
    assert parse_fail_on("none") == frozenset()
    assert parse_fail_on(DEFAULT_FAIL_ON) <= set(FINDING_KINDS)
    with pytest.raises(CliError, match="unknown kind; choose from"):
        parse_fail_on("nan,speed")


def test_one_line():
    assert one_line("a\n  b\tc") == "a b c"
    assert len(one_line("x" * 1000)) == 400
