"""The command as its users meet it: arguments, streams, exit codes. No process is started and nothing compiled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mjt_cli.collect.job import Job
from mjt_cli.commands import diagnose
from mjt_cli.report import Finding, GraphBreak, Recompilation, Report


def one_line_of(text: str) -> str:
    """The text, which must be a single line that names the program."""
    assert text.startswith("mjt: ")
    assert text.count("\n") == 1
    return text


@pytest.mark.parametrize("command", ["diagnose", "check"])
def test_missing_file(mjt, command: str):
    result = mjt(command, "no-such-model.xml")
    assert result.exit_code == 2
    assert "no-such-model.xml" in one_line_of(result.stderr)


@pytest.mark.parametrize("command", ["diagnose", "check"])
def test_malformed_xml(mjt, command: str, malformed: Path):
    result = mjt(command, malformed)
    assert result.exit_code == 2
    assert "malformed.xml: MuJoCo cannot load this model" in one_line_of(result.stderr)


def test_folder_instead_of_a_file(mjt, tmp_path: Path):
    result = mjt("diagnose", tmp_path)
    assert result.exit_code == 2
    one_line_of(result.stderr)


def test_unsupported_model_is_refused(mjt, unsupported: Path):
    result = mjt("diagnose", unsupported)
    assert result.exit_code == 3
    assert result.stdout == ""
    assert "not supported: solver" in one_line_of(result.stderr)


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--dtype", "float16", "'float64'"),
        ("--mode", "fast", "'reduce-overhead'"),
        ("--batch", "0", "--batch"),
        ("--batch", "many", "--batch"),
        ("--steps", "0", "--steps"),
        ("--threads", "0", "--threads"),
        ("--device", "tpu-of-mine", "unknown device"),
        ("--device", "meta", "not a device of this library"),
        ("--device", "cuda:99", "not available"),
        ("--fail-on", "speed", "unknown kind"),
        ("--colour", "red", "--colour"),
    ],
)
def test_bad_options(mjt, pendulum: Path, option: str, value: str, told: str):
    result = mjt("diagnose", pendulum, option, value)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert told in one_line_of(result.stderr)


def test_device_that_is_not_available(mjt, pendulum: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = mjt("diagnose", pendulum, "--device", "cuda")
    assert result.exit_code == 2
    assert "--device cuda: not available" in one_line_of(result.stderr)


def test_no_model_and_no_command(mjt):
    assert mjt("diagnose").exit_code == 2
    bare = mjt()
    assert bare.exit_code == 2
    assert bare.stdout == ""
    assert "diagnose" in bare.stderr


def test_version_and_help(mjt):
    assert mjt("--version").stdout.startswith("mjt ")
    assert "--fail-on" in mjt("diagnose", "--help").stdout


def test_clean_run(mjt, worker_result: Report, pendulum: Path):
    result = mjt("diagnose", pendulum)
    assert result.exit_code == 0
    assert "No findings." in result.stdout
    for name in ("Graphs", "Recompilations", "Guards", "Compile time", "CUDA graphs", "MuJoCo C parity"):
        assert name in result.stdout
    for name in ("1 blocks of 4 worlds, 1 pieces (piece_0)", "23,456 steps/s", "14.0 CPU-seconds", "170 us"):
        assert name in result.stdout


def test_findings_are_told_and_fail(mjt, worker_result: Report, pendulum: Path):
    worker_result.graph_breaks = [GraphBreak("call of print", ["step.py:7 in step: print()"], "first step")]
    worker_result.recompilations = [Recompilation("step", "masked reset", "stride mismatch at index 0")]
    worker_result.findings = [Finding("graph-break", "x"), Finding("recompile", "y")]
    result = mjt("diagnose", pendulum)
    assert result.exit_code == 1
    for told in ("call of print", "step.py:7", "masked reset", "stride mismatch at index 0", "2 findings"):
        assert told in result.stdout


def test_blocks_can_be_left_out(mjt, pendulum: Path, monkeypatch: pytest.MonkeyPatch, clean_report: Report):
    asked: list[bool] = []

    def run_worker(job: Job, **_: object) -> Report:
        asked.append(job.blocks)
        clean_report.blocks = None
        return clean_report

    monkeypatch.setattr(diagnose, "run_worker", run_worker)
    assert "mujoco_torch.compile" not in mjt("diagnose", pendulum, "--no-blocks").stdout
    mjt("diagnose", pendulum)
    assert asked == [False, True]


def test_fail_on(mjt, worker_result: Report, pendulum: Path):
    worker_result.findings = [Finding("recompile", "x")]
    assert mjt("diagnose", pendulum).exit_code == 1
    assert mjt("diagnose", pendulum, "--fail-on", "nan,parity").exit_code == 0
    assert mjt("diagnose", pendulum, "--fail-on", "recompile,graph-break").exit_code == 1


def test_json_alone_on_stdout(mjt, worker_result: Report, pendulum: Path):
    result = mjt("diagnose", pendulum, "--json")
    assert json.loads(result.stdout)["model"] == "pendulum"


@pytest.mark.parametrize("no_color", [True, False])
def test_no_color(
    mjt, worker_result: Report, pendulum: Path, monkeypatch: pytest.MonkeyPatch, no_color: bool
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    else:
        monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = "\x1b[32m" in mjt("diagnose", pendulum).stdout
    assert coloured is not no_color


def test_check_reports_every_model(mjt, pendulum: Path, unsupported: Path):
    result = mjt("check", pendulum, unsupported, "humanoid")
    assert result.exit_code == 3
    for told in ("pendulum", "supported", "refused", "solver", "humanoid"):
        assert told in result.stdout


def test_check_goes_on_after_an_unreadable_file(mjt, malformed: Path, unsupported: Path):
    result = mjt("check", malformed, unsupported, "--json")
    assert result.exit_code == 2
    bad, refused = json.loads(result.stdout)["models"]
    assert bad["error"] and not bad["supported"]
    assert refused["findings"][0]["feature"] == "solver"
    assert set(refused) == {"model", "path", "supported", "error", "findings"}


def test_check_of_supported_models(mjt, pendulum: Path):
    result = mjt("check", pendulum, "hopper.xml", "--json")
    assert result.exit_code == 0
    assert all(model["supported"] for model in json.loads(result.stdout)["models"])


def test_info(mjt, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_LOGS", "")
    told = mjt("info")
    assert told.exit_code == 0
    assert torch.__version__ in told.stdout
    plain = json.loads(mjt("info", "--json").stdout)
    assert plain["versions"]["torch"] == torch.__version__
    assert plain["devices"][0] == "cpu"
    assert {"torch.compile", "CUDA graphs"} <= {item["name"] for item in plain["capabilities"]}
    assert plain["settings"]["TORCH_LOGS"] == ""


def test_info_says_why_it_cannot_compile(mjt, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    plain = json.loads(mjt("info", "--json").stdout)
    (compiling,) = [item for item in plain["capabilities"] if item["name"] == "torch.compile"]
    assert not compiling["usable"]
    assert "set CXX" in compiling["detail"]
