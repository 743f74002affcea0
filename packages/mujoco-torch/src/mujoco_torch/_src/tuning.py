"""The size of a block of worlds: measured for a model, and remembered in the user's cache."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mujoco_torch._src import kernels

CANDIDATES = (64, 128, 256, 512)
ROUNDS = 5


def remembered(model: str) -> int | None:
    """The size measured for a model (named by its structure and dtype) on this processor, if it was."""
    size = _load().get(model)
    return size if isinstance(size, int) and size > 0 else None


def measure(model: str, candidates: Sequence[int], run: Callable[[int], object]) -> int:
    """The candidate for which ``run(size)`` is fastest, measured in turns; remembered from then on."""
    for size in candidates:
        run(size)  # compiles
    seconds = {size: min(_seconds(run, size) for _ in range(ROUNDS)) for size in candidates}
    best = min(seconds, key=lambda size: seconds[size])
    _store({**_load(), model: best})
    return best


def _seconds(run: Callable[[int], object], size: int) -> float:
    start = time.perf_counter()
    run(size)
    return time.perf_counter() - start


def _path() -> Path | None:
    folder = kernels.cache_dir()
    return folder and folder / f"blocks-{kernels.processor_key()}.json"


def _load() -> dict[str, int]:
    path = _path()
    try:
        known = json.loads(path.read_text(encoding="utf-8")) if path else {}
    except (OSError, ValueError):  # not there yet, or damaged
        return {}
    return known if isinstance(known, dict) else {}


def _store(sizes: dict[str, int]) -> None:
    """Write all sizes at once, so that another process sees the old file or the new one, or none if it cannot be."""
    path = _path()
    if path is None:
        return
    try:
        handle, partial = tempfile.mkstemp(suffix=".json", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(sizes, file)
        os.replace(partial, path)
    except OSError:
        return
