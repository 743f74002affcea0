"""Shared by the tests of the command line: how to run it, model files of every bad kind, a finished report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mjt_cli.app import app
from mjt_cli.collect.job import Job
from mjt_cli.commands import diagnose
from mjt_cli.report import (
    Blocks,
    Call,
    Comparison,
    CompileSeconds,
    CudaGraphs,
    FrameGuards,
    GeneratedCode,
    Guards,
    ModelSize,
    Overhead,
    Report,
)

PENDULUM = """
<mujoco model="pendulum">
  <worldbody>
    <body>
      <joint name="hinge" type="hinge" axis="0 1 0"/>
      <geom type="capsule" size=".02" fromto="0 0 0 0 0 -.4"/>
    </body>
  </worldbody>
  <actuator><motor joint="hinge"/></actuator>
</mujoco>
"""
PGS = """
<mujoco model="pgs">
  <option solver="PGS"/>
  <worldbody>
    <geom type="plane" size="1 1 0.1"/>
    <body><freejoint/><geom size="0.1"/></body>
  </worldbody>
</mujoco>
"""


@pytest.fixture
def mjt() -> Callable[..., Result]:
    """Runs `mjt` with these arguments in this process."""
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def pendulum(tmp_path: Path) -> Path:
    path = tmp_path / "pendulum.xml"
    path.write_text(PENDULUM)
    return path


@pytest.fixture
def unsupported(tmp_path: Path) -> Path:
    path = tmp_path / "unsupported.xml"
    path.write_text(PGS)
    return path


@pytest.fixture
def malformed(tmp_path: Path) -> Path:
    path = tmp_path / "malformed.xml"
    path.write_text("<mujoco><worldbody>")
    return path


@pytest.fixture
def clean_report() -> Report:
    return Report(
        model="pendulum",
        mode="default",
        device="cpu",
        dtype="float64",
        batch=4,
        steps=10,
        threads=2,
        model_size=ModelSize("pendulum.xml", nq=1, nv=1, nu=1, nbody=2, ngeom=1),
        versions={"torch": "2.13.0"},
        life=[Call("first step", 12.0, 20.0, 1), Call("fed-back step 1", 0.001, 0.001, 0)],
        graphs=1,
        guards=Guards([FrameGuards("step (forward.py:1)", "0/0", 88, 30.0)]),
        compile_seconds=CompileSeconds(1.0, 1.0, 2.0, 3.0, 4.0, 15.0, 11.0),
        code=GeneratedCode(70, 120, 9, 4, 1234),
        cuda_graphs=CudaGraphs(False, "on the CPU"),
        steps_per_second=12345.0,
        overhead=Overhead(120.0, "by a test"),
        compiled_vs_eager=Comparison({"qpos": 0.0, "qacc": 1e-15}, 1e-12, 4),
        parity=Comparison({"qpos": 0.0, "qvel": 1e-16, "qacc": 1e-12}, 1e-6, 4),
        blocks=Blocks(
            block=4,
            count=1,
            compile_seconds=9.0,
            compile_cpu_seconds=14.0,
            life=[Call("first step", 9.0, 14.0, 1), Call("step of 5 worlds", 0.001, 0.001, 0)],
            pieces=["piece_0"],
            guards=0,
            steps_per_second=23456.0,
            overhead=Overhead(150.0, "by a test"),
            batch_overhead=Overhead(170.0, "by a test"),
            compiled_vs_eager=Comparison({"qpos": 0.0}, 1e-12, 4),
        ),
    )


@pytest.fixture
def worker_result(monkeypatch: pytest.MonkeyPatch, clean_report: Report) -> Report:
    """`mjt diagnose` starts no process but gets this report, which a test may spoil first."""

    def run_worker(job: Job, **_: object) -> Report:
        return clean_report

    monkeypatch.setattr(diagnose, "run_worker", run_worker)
    return clean_report
