"""Says on stderr what a long command is doing: a live line on a terminal, else one line per phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def progress() -> Generator[Callable[[str], None]]:
    """Yields the function to call with the name of each phase as it begins."""
    out = Console(stderr=True)
    with _live(out) if out.is_terminal else _lines(out) as phase:
        yield phase


@contextmanager
def _live(out: Console) -> Generator[Callable[[str], None]]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True) as live:
        task = live.add_task("starting", total=None)
        yield lambda name: live.update(task, description=name)


@contextmanager
def _lines(out: Console) -> Generator[Callable[[str], None]]:
    start = time.monotonic()
    yield lambda name: out.print(
        f"mjt: {time.monotonic() - start:4.0f} s  {name}", highlight=False, markup=False, soft_wrap=True
    )
