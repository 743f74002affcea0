"""Compare engines on the same scenes, in turns, and write the ratios.

One process per engine prepares and then waits; only one of them works at any time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import scenes
from run import emit

HERE = Path(__file__).resolve().parent
DEFAULT_ENGINES = ("mujoco_torch:default", "mujoco_c:rollout", "mjx:jit")


class Process:
    """An engine in a process of its own, started with `run.py --serve`."""

    def __init__(self, engine: str, scene: str, options: argparse.Namespace, tree: Path | None = None):
        name, _, mode = engine.partition(":")
        self.label = f"{name}:{mode}" if mode else name
        command = [python_of(engine, options), str(HERE / "run.py"), "--serve"]
        command += ["--engine", name, "--scene", scene]
        command += ["--mode", mode] if mode else []
        for option in ("batch", "dtype", "device", "threads", "steps", "max_seconds"):
            command += [f"--{option.replace('_', '-')}", str(getattr(options, option))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment(tree), **pipes)
        self._read()

    def measure(self) -> dict:
        """One measurement, while the other processes wait."""
        self.process.stdin.write("measure\n")
        self.process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        """Let the process end by closing its input."""
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> dict:
        """The next JSON line; the engine's libraries may print others."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        sys.exit(f"{self.label} ended with exit status {self.process.wait()}")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scenes", nargs="+", default=scenes.names(), choices=scenes.names())
    parser.add_argument("--engines", nargs="+", default=DEFAULT_ENGINES, metavar="ENGINE:MODE")
    parser.add_argument(
        "--python-mjx", help="interpreter of the environment with MJX; without it MJX is left out"
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="TREE", help="checkout of another commit, measured too"
    )
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--max-seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="append all lines to this file")
    return parser.parse_args()


def main() -> None:
    """Compare on every scene."""
    options = parse()
    for scene in options.scenes:
        for line in compare(scene, options):
            emit(line, options.out)


def compare(scene: str, options: argparse.Namespace) -> list[dict]:
    """Lines of one scene: the measurements of all rounds, then the ratios of the first engine's modes."""
    scenes.states(scenes.scene(scene), 1)  # made here once, so that every engine starts from the same file
    engines = chosen_engines(options)
    processes = [Process(engine, scene, options) for engine in engines]
    if options.baseline:
        processes.append(Process(engines[0], scene, options, options.baseline))
    try:
        rounds = [[process.measure() for process in processes] for _ in range(options.rounds)]
    finally:
        for process in processes:
            process.stop()
    measurements = [line | {"round": turn} for turn, lines in enumerate(rounds) for line in lines]
    return measurements + ratios(rounds)


def chosen_engines(options: argparse.Namespace) -> list[str]:
    """Engines to start; MJX only where its interpreter is given."""
    engines = [engine for engine in options.engines if options.python_mjx or not engine.startswith("mjx")]
    if len(engines) < len(options.engines):
        print("mjx is left out: --python-mjx is not given", file=sys.stderr)
    return engines


def python_of(engine: str, options: argparse.Namespace) -> str:
    """Interpreter that runs an engine."""
    return options.python_mjx if engine.startswith("mjx") else sys.executable


def environment(tree: Path | None) -> dict[str, str]:
    """Environment of an engine's process; that of a baseline finds the library in another checkout."""
    source = {} if tree is None else {"PYTHONPATH": str(tree.resolve() / "packages/mujoco-torch/src")}
    return os.environ | source


def ratios(rounds: list[list[dict]]) -> list[dict]:
    """Speed of each mode of the first engine over that of everything named after it, round by round."""
    engines = [line["engine"] for line in rounds[0]]
    pairs = itertools.combinations(range(len(engines)), 2)
    return [ratio(rounds, one, other) for one, other in pairs if engines[one] == engines[0]]


def ratio(rounds: list[list[dict]], one: int, other: int) -> dict:
    """Median, smallest and largest ratio of one engine to another."""
    values = [lines[one]["steps_per_second"] / lines[other]["steps_per_second"] for lines in rounds]
    first, second = rounds[0][one], rounds[0][other]
    shared = {key: first[key] for key in ("scene", "batch", "dtype", "machine")}
    return {
        "kind": "ratio",
        **shared,
        "numerator": f"{first['engine']}:{first['mode']}",
        "denominator": f"{second['engine']}:{second['mode']}",
        "threads": [first["threads"], second["threads"]],
        "versions": [first["versions"], second["versions"]],
        "rounds": len(rounds),
        "ratio_median": round(statistics.median(values), 3),
        "ratio_min": round(min(values), 3),
        "ratio_max": round(max(values), 3),
        "numerator_steps_per_second": median_speed(rounds, one),
        "denominator_steps_per_second": median_speed(rounds, other),
        "load_average_max": max(line["load_average"] for lines in rounds for line in lines),
    }


def median_speed(rounds: list[list[dict]], which: int) -> float:
    """Median steps per second of one engine over the rounds."""
    return statistics.median(lines[which]["steps_per_second"] for lines in rounds)


if __name__ == "__main__":
    main()
