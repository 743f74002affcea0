"""What `mujoco_torch.compile(step)` makes of the step on a CPU: the same life as that of `torch.compile`, and more.

The compiled step is a method of an object that tells its `block_size` and its `pieces`. A piece is a function of a
block of worlds; it has what `torch.compile` made of it, `traced`, and what calls run, `run`.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import mujoco_torch as mjt
from mjt_cli.collect import measure, parity, scenario, torch_private
from mjt_cli.report import Blocks, Call, Overhead, Recompilation, Report

SEVERAL_STEPS = 3
OVERHEAD_CALLS = 100
METHOD = "median of repeated calls with the compiled pieces replaced by nothing"

Step = Callable[..., mjt.Data]


def look(report: Report, scene: scenario.Scene, phase: Callable[[str], None]) -> None:
    """Compiles the step in blocks and looks at it; fills `report.blocks` as it goes."""
    # No block is larger than the batch, so a call with more worlds than a block can be made for any batch.
    block = min(scene.batch, _object(mjt.compile(mjt.step)).block_size(scene.m, scene.fresh()))
    step = mjt.compile(mjt.step, mode=report.mode, block=block)
    found = report.blocks = Blocks(block=block, count=-(-scene.batch // block))
    phase("blocks: probing the tool chain")
    found.toolchain_probe = probe(scene)
    torch_private.reset()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RuntimeWarning)
        live(found, scene, step, phase)
    found.notes = [str(warning.message) for warning in told if issubclass(warning.category, RuntimeWarning)]
    pieces = _object(step).pieces
    found.pieces = [torch_private.name_of(piece.traced) for piece in pieces]
    found.guards = sum(torch_private.guards_of(piece.traced) for piece in pieces) if pieces else None
    phase("blocks: steady steps")
    d = steady(found, scene, step, report.steps)
    if pieces:
        found.overhead = overhead(step, scene, d[:block])
        found.batch_overhead = overhead(step, scene, d)
    phase("blocks: comparing with eager")
    found.compiled_vs_eager = parity.compare_data(step(scene.m, d), mjt.step(scene.m, d), report.dtype)


def _object(step: Step) -> Any:
    """What a step compiled in blocks is a method of."""
    return getattr(step, "__self__")  # noqa: B009  (a Callable has no such attribute to a type checker)


def probe(scene: scenario.Scene) -> float:
    """Seconds of what the first compilation through the C++ wrapper pays once: a trivial function, own kernels."""
    x = torch.ones(8, dtype=scene.m.dtype)
    trivial = torch.compile(lambda x: x + 1, options={"cpp_wrapper": True})

    def first() -> None:
        trivial(x)
        mjt.step(scene.m, mjt.make_data(scene.m))

    return measure.seconds_of(first, "cpu")


def life(scene: scenario.Scene, step: Step, block: int) -> Iterator[tuple[str, Callable[[], mjt.Data]]]:
    """The calls of the scripted life, then one with a ragged last block and one of several steps."""
    yield from scenario.life(scene, lambda d: step(scene.m, d))
    ragged = mjt.make_data(scene.m, block + 1)
    yield f"step of {block + 1} worlds", lambda: step(scene.m, ragged)
    fresh = scene.fresh()
    yield f"{SEVERAL_STEPS} steps in one call", lambda: step(scene.m, fresh, SEVERAL_STEPS)


def live(found: Blocks, scene: scenario.Scene, step: Step, phase: Callable[[str], None]) -> None:
    """Runs the life and records what was compiled during each of its calls."""
    for name, call in life(scene, step, found.block):
        phase(f"blocks: {name}" if found.life else f"blocks: {name} (compiling)")
        cpu = measure.cpu_seconds()
        seconds = measure.seconds_of(call, "cpu")
        spent, frames = measure.cpu_seconds() - cpu, torch_private.take_frames()
        if found.life:
            found.recompilations += [
                Recompilation(frame.name, name, frame.recompile_reason or "this piece had not run before")
                for frame in frames
            ]
        else:
            found.compile_seconds, found.compile_cpu_seconds = seconds, spent
        found.life.append(Call(name, seconds, spent, len(frames)))


def steady(found: Blocks, scene: scenario.Scene, step: Step, steps: int) -> mjt.Data:
    """Measures the speed over fed-back steps; returns the last data."""
    state = [scene.fresh()]

    def advance() -> None:
        state[0] = step(scene.m, state[0])

    advance()
    found.steps_per_second = scene.batch * measure.calls_per_second(advance, steps, "cpu")
    return state[0]


def overhead(step: Step, scene: scenario.Scene, d: mjt.Data) -> Overhead:
    """Microseconds of one call but for its pieces: the check of Data, blocks cut and put together, the result."""
    with pieces_replaced(step, lambda: step(scene.m, d)):
        seconds = [measure.seconds_of(lambda: step(scene.m, d), "cpu") for _ in range(OVERHEAD_CALLS)]
    return Overhead(1e6 * statistics.median(seconds), METHOD)


@contextmanager
def pieces_replaced(step: Step, call: Callable[[], object]) -> Generator[None]:
    """Each piece returns at once what it returned last in `call`, while the context is open."""
    pieces = _object(step).pieces
    runs = [piece.run for piece in pieces]
    last: dict[int, Any] = {}
    try:
        for piece, run in zip(pieces, runs, strict=True):
            piece.run = _kept(run, last, id(piece))
        call()
        for piece in pieces:
            piece.run = _answer(last.get(id(piece)))
        yield
    finally:
        for piece, run in zip(pieces, runs, strict=True):
            piece.run = run


def _kept(run: Callable[..., Any], last: dict[int, Any], key: int) -> Callable[..., Any]:
    def kept(*args: Any) -> Any:
        last[key] = run(*args)
        return last[key]

    return kept


def _answer(result: Any) -> Callable[..., Any]:
    return lambda *args: result
