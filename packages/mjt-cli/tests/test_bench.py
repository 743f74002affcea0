"""`mjt bench`: arguments and output without a process, the measurement with an uncompiled step, states, reports."""

from __future__ import annotations

import json
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

import mujoco_torch
from mjt_cli.bench_report import BenchReport, Contestant, Speed, bench_from_json, summarize
from mjt_cli.collect import bench, process, starts
from mjt_cli.collect.job import BenchJob
from mjt_cli.commands import bench as command
from mjt_cli.report import ModelSize, to_json

NAMES = ["compile(step)", "compile(step, keep=())", "compile(rollout)", "mujoco.rollout (C)"]

BALL = """
<mujoco model="ball">
  <worldbody>
    <geom type="plane" size="1 1 .1"/>
    <body pos="0 0 .1"><freejoint/><geom type="sphere" size=".1"/></body>
  </worldbody>
</mujoco>
"""


def job(path: Path | str = "pendulum.xml", **changes) -> BenchJob:
    setting = dict(mode="default", device="cpu", dtype="float64", batch=4, steps=2, rounds=3, threads=1)
    return BenchJob(str(path), "pendulum", **setting | changes, caches="warm")


@pytest.fixture
def bench_report() -> BenchReport:
    report = job().empty_report()
    report.model_size = ModelSize("pendulum.xml", 1, 1, 1, 2, 1)
    report.timestep = 0.002
    report.versions, report.machine = {"torch": "2.13.0"}, {"processor": "a processor", "cores": 2}
    report.load_average, report.contacts_per_world = [0.5, 1.5], 2.0
    ours = Contestant("compile(step)", "cpu", 1, 12.0, 20.0, 2048.0, [300.0, 100.0, 200.0])
    ours.converged, ours.qvel_error, ours.notes = 1.0, 1e-15, ["no C++ wrapper\n(no compiler)"]
    c = Contestant("mujoco.rollout (C)", "cpu", 1, steps_per_second=[100.0, 100.0, 50.0])
    report.contestants = [ours, c]
    summarize(report, c)
    return report


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, bench_report: BenchReport) -> BenchReport:
    """`mjt bench` starts no process but gets this report."""
    monkeypatch.setattr(command, "run_bench", lambda job, **_: bench_report)
    return bench_report


def test_summary_compares_round_by_round(bench_report: BenchReport):
    ours, c = bench_report.contestants
    assert ours.speed == Speed(200.0, 100.0, 300.0)
    assert ours.ratio_to_c == 3.0  # of 3, 1 and 4
    assert ours.realtime_factor == pytest.approx(0.4)
    assert c.ratio_to_c == 1.0


def test_json_round_trip(bench_report: BenchReport):
    assert bench_from_json(to_json(bench_report)) == bench_report
    assert next(iter(json.loads(to_json(bench_report)))) == "schema_version"
    empty = job().empty_report()
    summarize(empty, None)
    assert bench_from_json(to_json(empty)) == empty


def test_table(mjt, measured: BenchReport, pendulum: Path):
    result = mjt("bench", pendulum)
    assert result.exit_code == 0
    for told in ("200 (100 to 300)", "3.00", "2.0 KiB", "12.0 s (20.0 s CPU)", "100.0 %", "1.0e-15"):
        assert told in result.stdout
    for told in (
        "load average 0.5 to 1.5 on 2 cores",
        "torch 2.13.0",
        "a processor",
        "no C++ wrapper (no compiler)",
    ):
        assert told in result.stdout


def test_json_alone_on_stdout(mjt, measured: BenchReport, pendulum: Path):
    plain = json.loads(mjt("bench", pendulum, "--json").stdout)
    assert plain["schema_version"] == 1
    assert [c["name"] for c in plain["contestants"]] == [NAMES[0], NAMES[3]]


@pytest.mark.parametrize("no_color", [True, False])
def test_no_color(mjt, measured: BenchReport, pendulum: Path, monkeypatch, no_color: bool):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1" if no_color else "")
    assert ("\x1b[33m" in mjt("bench", pendulum).stdout) is not no_color


def test_a_failed_run(mjt, measured: BenchReport, pendulum: Path):
    measured.error = "compile(step): compiling failed: RuntimeError: no memory"
    result = mjt("bench", pendulum, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"] == measured.error
    assert result.stderr.splitlines()[-1] == f"mjt: {measured.error}"


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--dtype", "float16", "'float64'"),
        ("--mode", "fast", "'reduce-overhead'"),
        ("--batch", "0", "--batch"),
        ("--rounds", "0", "--rounds"),
        ("--steps", "none", "--steps"),
        ("--threads", "0", "--threads"),
        ("--device", "cuda:99", "not available"),
    ],
)
def test_bad_options(mjt, pendulum: Path, option: str, value: str, told: str):
    result = mjt("bench", pendulum, option, value)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and told in result.stderr


def test_bad_models(mjt, unsupported: Path, malformed: Path):
    assert mjt("bench", "no-such-model.xml").exit_code == 2
    assert mjt("bench", malformed).exit_code == 2
    refused = mjt("bench", unsupported)
    assert refused.exit_code == 3
    assert "not supported: solver" in refused.stderr


def test_a_worker_that_dies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        process, "BENCH_WORKER", [process.sys.executable, "-c", "raise SystemExit('no torch')"]
    )
    report = process.run_bench(job(), timeout=60.0, phase=lambda name: None)
    assert report.error and "ended with status 1: no torch" in report.error


def eager(fn, *, mode=None, keep=None, block=None):
    """Stands in for `mujoco_torch.compile`: as `keep` asks, but not compiled."""
    if fn is mujoco_torch.rollout or keep is None:
        return fn
    names = [name for name in fields_of_data() if name not in STATE]

    def step(m: mujoco_torch.Model, d: mujoco_torch.Data) -> mujoco_torch.Data:
        d = fn(m, d)
        return d.replace(**{name: torch.full_like(getattr(d, name), -1) for name in names})

    return step


STATE = (
    "time", "qpos", "qvel", "act", "history", "plastic", "qacc_warmstart", "ctrl", "qfrc_applied", "xfrc_applied",
    "eq_active", "mocap_pos", "mocap_quat",
)  # fmt: skip


def fields_of_data() -> list[str]:
    return [name for name in mujoco_torch.Data.__dataclass_fields__ if name != "contact"]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_measurement(pendulum: Path, monkeypatch: pytest.MonkeyPatch, dtype: str):
    """Everything but compiling, in this process."""
    monkeypatch.setattr(mujoco_torch, "compile", eager)
    monkeypatch.setattr(bench, "probe_toolchain", lambda job, m: 0.0)
    monkeypatch.setattr(torch, "set_grad_enabled", lambda on: None)
    sent: list[dict[str, str]] = []
    bench.work(job(pendulum, dtype=dtype), sent.append)
    report = bench_from_json(sent[-1]["report"])
    assert report.error is None
    assert [c.name for c in report.contestants] == NAMES
    for contestant in report.contestants:
        assert len(contestant.steps_per_second) == 3
        assert contestant.speed and contestant.ratio_to_c and contestant.realtime_factor
        assert contestant.qvel_error is not None
        assert contestant.qvel_error < (1e-12 if dtype == "float64" or "(C)" in contestant.name else 1e-5)
    assert [c.converged for c in report.contestants] == [1.0, None, None, 1.0]
    assert [c.compile_seconds is None for c in report.contestants] == [False, False, False, True]
    assert len(report.load_average) == 1 + 3 * 4
    phases = [message["phase"] for message in sent[:-1]]
    turns = [phase.partition(": ") for phase in phases if phase.startswith("round")]
    assert [(turn, name) for turn, _, name in turns] == [
        (f"round {turn} of 3", name) for turn in (1, 2, 3) for name in NAMES
    ]


def test_failure_keeps_what_was_learned(pendulum: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*args, **options):
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(bench, "make_starts", fail)
    monkeypatch.setattr(torch, "set_grad_enabled", lambda on: None)
    sent: list[dict[str, str]] = []
    bench.work(job(pendulum), sent.append)
    report = bench_from_json(sent[-1]["report"])
    assert report.error == "settling the worlds in MuJoCo C failed: RuntimeError: out of memory"
    assert report.model_size and report.model_size.nv == 1


def test_worlds_start_different_and_in_contact():
    mjm = mujoco.MjModel.from_xml_string(BALL)
    made = starts.make_starts(mjm, 5, threads=1)
    assert made.contacts_per_world > 0
    assert len(np.unique(made.qpos[:, 0])) == 5
    assert made.full_states().shape == (5, 1 + mjm.nq + mjm.nv)
    assert made.ctrl.shape == (5, 0)
    assert np.array_equal(made.qpos, starts.make_starts(mjm, 5, threads=1).qpos)


def test_more_worlds_repeat_the_first(monkeypatch: pytest.MonkeyPatch, pendulum: Path):
    monkeypatch.setattr(starts, "DIFFERENT_WORLDS", 3)
    made = starts.make_starts(mujoco.MjModel.from_xml_path(str(pendulum)), 7, threads=1)
    assert np.array_equal(made.qpos[3:6], made.qpos[:3])
    assert np.array_equal(made.ctrl[6], made.ctrl[0])
    assert len(np.unique(made.ctrl)) == 3


def test_reference_is_one_step_of_c():
    mjm = mujoco.MjModel.from_xml_path(str(mujoco_torch.model_path("hopper")))
    made = starts.make_starts(mjm, 3, threads=1)
    expected = starts.reference(mjm, made, steps=1)
    mjd = mujoco.MjData(mjm)
    mjd.qpos, mjd.qvel, mjd.ctrl = made.qpos[1], made.qvel[1], made.ctrl[1]
    mujoco.mj_step(mjm, mjd)
    assert np.array_equal(expected.qvel[1], mjd.qvel)
    assert expected.converged == 1.0
    mjm.opt.iterations, mjm.opt.tolerance = 1, 0.0
    assert starts.reference(mjm, made, steps=1).converged < 1.0
