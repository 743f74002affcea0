"""Measure one engine on one scene; one JSON line per measurement.

With `--serve` the engine stays prepared and measures once for every line of standard input: that is how
`compare.py` lets engines take turns.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

import numpy as np

import machine
import scenes
from engines.base import Engine, Task

ENGINES = ("mujoco_torch", "mujoco_c", "mjx")

# Worlds of the check against MuJoCo C, which steps them one by one.
NCHECK = 256


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", required=True, choices=ENGINES)
    parser.add_argument("--scene", required=True, choices=scenes.names())
    parser.add_argument("--mode", help="default: the first mode of the engine")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--device", default="cpu", help="of mujoco_torch; the others decide themselves")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--max-seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help="measure once per line of standard input")
    parser.add_argument("--out", type=Path, help="also append the lines to this file")
    return parser.parse_args(arguments)


def main() -> None:
    """Prepare, then measure."""
    options = parse()
    task, module = prepare_task(options)
    started = time.perf_counter()
    engine = module.make(task)
    seconds = round(time.perf_counter() - started, 2)
    described = describe(options, task, engine) | {"versions": module.VERSIONS, "prepare_seconds": seconds}
    described |= check(task, engine)
    engine.run()
    for _ in turns(options):
        emit(described | measure(task, engine), options.out)


def prepare_task(options: argparse.Namespace) -> tuple[Task, object]:
    """Load the scene and the engine's module."""
    module = importlib.import_module(f"engines.{options.engine}")
    mode = options.mode or module.MODES[0]
    if mode not in module.MODES:
        sys.exit(f"{options.engine} has no mode {mode!r}; it has {', '.join(module.MODES)}")
    scene = scenes.scene(options.scene)
    chosen = {name: getattr(options, name) for name in ("dtype", "threads", "device", "steps", "max_seconds")}
    task = Task(mjm=scene.load(), start=scenes.states(scene, options.batch), mode=mode, **chosen)
    return task, module


def turns(options: argparse.Namespace):
    """Yield once for each measurement to make."""
    if not options.serve:
        yield from range(options.rounds)
        return
    print(json.dumps({"kind": "ready"}), flush=True)
    yield from sys.stdin


def describe(options: argparse.Namespace, task: Task, engine: Engine) -> dict:
    """What is measured, with what and where."""
    return {
        "kind": "measurement",
        "engine": options.engine,
        "mode": task.mode,
        "scene": options.scene,
        "batch": task.nworld,
        "dtype": task.dtype if options.engine != "mujoco_c" else "float64",
        "device": task.device,
        "threads": engine.threads,
        "machine": machine.describe(),
    }


def check(task: Task, engine: Engine) -> dict:
    """Difference of the velocities from MuJoCo C's after one step from the same states."""
    start = {key: value[:NCHECK] for key, value in task.start.items()}
    error = np.abs(engine.one_step()[:NCHECK] - scenes.reference_step(task.mjm, start)).max(axis=1)
    return {"qvel_error_median": float(np.median(error)), "qvel_error_max": float(error.max())}


def measure(task: Task, engine: Engine) -> dict:
    """Integrate once and time it."""
    load = machine.load_average()
    processor, wall = time.process_time(), time.perf_counter()
    done, qpos = engine.run()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return {
        "steps": done,
        "seconds": round(wall, 4),
        "processor_seconds": round(processor, 4),
        "load_average": round(load, 2),
        "steps_per_second": round(done / wall, 1),
        "finite": bool(np.isfinite(qpos).all()),
    }


def emit(line: dict, out: Path | None) -> None:
    """Print a line and append it to the file, if there is one."""
    text = json.dumps(line)
    print(text, flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
