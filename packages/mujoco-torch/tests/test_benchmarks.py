"""The benchmark runner measures a small batch, and its own check finds the engines equal."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"

# The runner with few worlds and its store of states elsewhere.
SMALL = """
import pathlib, sys
sys.path.insert(0, sys.argv.pop(1))
import run, scenes
scenes.NWORLD, scenes.STATES = 8, pathlib.Path(sys.argv.pop(1))
run.main()
"""


@pytest.mark.parametrize(
    "engine, mode", [("mujoco_c", "rollout"), ("mujoco_c", "step"), ("mujoco_torch", "eager")]
)
def test_run_measures_and_checks(engine, mode, tmp_path):
    options = ["--engine", engine, "--mode", mode, "--scene", "hopper", "--batch", "8", "--steps", "3"]
    command = [sys.executable, "-c", SMALL, str(BENCHMARKS), str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    assert line["steps"] == 3 * 8
    assert line["finite"]
    assert line["qvel_error_max"] < 1e-8
