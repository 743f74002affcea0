"""`mjt diagnose` for real: fresh processes that compile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import mujoco_torch
from mjt_cli.collect import parity, process, scenario, worker

QUICK = ("--batch", "4", "--steps", "5", "--threads", "1", "--backend", "aot_eager", "--json")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "mjt_cli", *arguments], capture_output=True, text=True)


def assert_clean(report: dict) -> None:
    """One graph, nothing compiled twice, equal to eager and to C."""
    assert report["graphs"] == 1
    assert report["graph_breaks"] == []
    assert report["recompilations"] == []
    assert [call["name"] for call in report["life"]] == [
        "first step",
        "fed-back step 1",
        "fed-back step 2",
        "fed-back step 3",
        "step after a masked reset",
        "step of stacked data",
        "step of put_data",
    ]
    assert report["steps_per_second"] > 0
    assert report["nan_worlds"] == 0
    assert all(error <= report["parity"]["tolerance"] for error in report["parity"]["errors"].values())
    assert report["cuda_graphs"]["applies"] is False


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_humanoid_without_inductor(dtype: str):
    result = run("diagnose", "humanoid.xml", "--dtype", dtype, *QUICK)
    report = json.loads(result.stdout)
    assert_clean(report)
    assert result.returncode == 0, result.stderr
    assert report["model"] == "humanoid"
    assert report["dtype"] == dtype
    lines = result.stderr.splitlines()
    assert lines and all(line.startswith("mjt: ") for line in lines)


@pytest.mark.slow
def test_hopper_with_inductor():
    options = ("--mode", "reduce-overhead", "--batch", "8", "--steps", "5", "--threads", "1", "--json")
    result = run("diagnose", "hopper", "--no-blocks", *options)
    report = json.loads(result.stdout)
    assert report["blocks"] is None
    assert_clean(report)
    assert result.returncode == 0, result.stderr
    assert report["code"]["kernels"] > 0
    assert report["code"]["lines"] > 100
    assert report["overhead"]["microseconds"] > 0
    seconds = report["compile_seconds"]
    assert seconds["toolchain_probe"] > 0
    assert seconds["cpp_or_triton"] > 0
    apart = {"total", "toolchain_probe"}
    assert seconds["total"] == pytest.approx(sum(v for k, v in seconds.items() if k not in apart))


def test_a_step_with_faults_is_found_out(pendulum: Path, monkeypatch: pytest.MonkeyPatch):
    """A step that breaks its graph and goes wrong: every fault is named, in this process for speed."""
    right = mujoco_torch.step

    def wrong(m: mujoco_torch.Model, d: mujoco_torch.Data) -> mujoco_torch.Data:
        print("a graph break")
        d = right(m, d)
        return d.replace(qvel=d.qvel / 0.0)

    monkeypatch.setattr(mujoco_torch, "step", wrong)
    job = worker.Job(str(pendulum), "pendulum", "default", "eager", "cpu", "float64", 2, 2, None, "warm")
    sent: list[dict[str, str]] = []
    worker.work(job, sent.append)
    report = process.from_json(sent[-1]["report"])
    kinds = {finding.kind for finding in report.findings}
    assert {"graph-break", "nan", "parity"} <= kinds
    assert "failed" not in kinds
    assert report.graph_breaks[0].user_stack[-1].endswith('print("a graph break")')


def test_scene_is_different_in_every_world(pendulum: Path):
    mjm = worker.load_model(str(pendulum)).mjm
    scene = scenario.make_scene(mjm, batch=4, dtype=scenario.torch.float64, device="cpu")
    fresh = scene.fresh()
    assert fresh.ctrl.unique().numel() == 4
    assert fresh.qvel.unique().numel() == 4
    assert set(parity.leaves(fresh)) >= {"qpos", "qvel", "qacc", "time"}
    other = scene.excited(fresh.replace(qpos=fresh.qpos + 1.0))
    mixed = scenario.masked_reset(scene, other)
    assert mixed.qpos[:, 0].tolist() == [0.0, 1.0, 0.0, 1.0]
