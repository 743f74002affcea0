"""Where a figure was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def describe() -> dict[str, str | int]:
    """Processor, number of cores this process may use, system and Python."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def load_average() -> float:
    """Processes that wanted to run, over the last minute."""
    return os.getloadavg()[0]


def commit(directory: Path) -> str | None:
    """Commit of the checkout that a directory lies in; nothing where it lies in none."""
    command = ["git", "-C", str(directory), "describe", "--always", "--dirty"]
    answer = subprocess.run(command, capture_output=True, text=True)
    return answer.stdout.strip() or None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
