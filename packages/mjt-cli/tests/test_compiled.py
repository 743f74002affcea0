"""`mujoco_torch.compile` as the command line measures it: one small model, generated code, the user's caches.

The step is compiled once for both tests: of a batch of the same size it is the same code, which lies in the cache.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mujoco
import pytest
import torch

from mjt_cli.collect import blocks, scenario
from mjt_cli.collect.job import Job
from mjt_cli.report import Report

BATCH = 8

# The hopper takes twice as long to compile.
HOOP = """
<mujoco model="hoop">
  <worldbody>
    <geom type="plane" size="1 1 .1"/>
    <body pos="0 0 .1">
      <joint type="slide" axis="0 0 1"/>
      <joint name="hinge" type="hinge" axis="0 1 0" damping=".1" limited="true" range="-90 90"/>
      <geom type="sphere" size=".1"/>
    </body>
  </worldbody>
  <actuator><motor joint="hinge" gear=".1" ctrllimited="true" ctrlrange="-1 1"/></actuator>
</mujoco>
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "hoop.xml"
    path.write_text(HOOP)
    return path


@pytest.fixture(scope="module")
def bench_report(model: Path) -> dict:
    options = ("--warm", "--batch", str(BATCH), "--steps", "2", "--rounds", "2", "--threads", "1", "--json")
    command = [sys.executable, "-m", "mjt_cli", "bench", str(model), *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines()
    assert lines and all(line.startswith("mjt: ") for line in lines)
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def blocks_report(model: Path, bench_report: dict) -> Report:
    mjm = mujoco.MjModel.from_xml_path(str(model))
    scene = scenario.make_scene(mjm, batch=BATCH, dtype=torch.float64, device="cpu")
    report = Job("", "hoop", "default", "inductor", "cpu", "float64", BATCH, 2, 1, "warm").empty_report()
    blocks.look(report, scene, lambda name: None)
    return report


@pytest.mark.slow
def test_bench(bench_report: dict):
    assert bench_report["error"] is None
    step, state, rollout, c = bench_report["contestants"]
    for ours in (step, state, rollout):
        assert ours["compile_seconds"] > 0
        assert ours["notes"] == []
    for contestant in bench_report["contestants"]:
        assert len(contestant["steps_per_second"]) == 2
        assert contestant["qvel_error"] < 1e-8
    assert step["converged"] == c["converged"] == 1.0
    assert bench_report["contacts_per_world"] > 0


@pytest.mark.slow
def test_blocks(blocks_report: Report):
    found = blocks_report.blocks
    assert found
    assert (found.block, found.count, found.notes) == (BATCH, 1, [])
    assert found.pieces and found.guards == 0
    assert found.life[0].compiled_frames == 1
    assert [call.name for call in found.life[-3:]] == [
        "step of put_data",
        "step of 9 worlds",
        "3 steps in one call",
    ]
    assert all(call.compiled_frames == 0 for call in found.life[1:-1])
    assert found.overhead and found.overhead.microseconds and found.batch_overhead
    assert found.steps_per_second and found.compile_cpu_seconds
    assert found.compiled_vs_eager and found.compiled_vs_eager.within


@pytest.mark.slow
def test_several_steps_compile_nothing(blocks_report: Report):
    assert blocks_report.blocks and blocks_report.blocks.life[-1].compiled_frames == 0
