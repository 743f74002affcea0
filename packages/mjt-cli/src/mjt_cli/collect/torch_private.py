"""Every private interface of torch that `mjt` reads, in one file (written for torch 2.11 to 2.14).

Nothing else in this package uses a name of torch with an underscore. What is used:

* `torch._dynamo.utils.get_compilation_metrics`: one record per compiled frame (guards, phases, reason);
* `torch._dynamo.utils.counters`: the number of captured graphs;
* loggers named `*.__graph_breaks` and `*.__cudagraphs`: the texts of `TORCH_LOGS=graph_breaks,cudagraphs`;
* `torch._inductor.codecache.PyCodeCache.modules`: generated modules, to count and time their kernels;
* `torch._inductor.metrics`: the number of operations before fusion;
* `torch._dynamo.reset` and `PyCodeCache.cache_clear`: forget compiled code.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._dynamo
import torch._inductor.metrics as inductor_metrics
from torch._inductor.codecache import PyCodeCache

KERNEL = re.compile(r"^(\w+) = async_compile\.\w+\(", re.MULTILINE)
LIBRARY_CALL = re.compile(r"\bextern_kernels\.\w+\(|\btorch\.ops\.\w+\.\w+\.\w+\(")
STACK_MARK = "User code traceback:"
REASON_MARK = "Graph Break Reason:"
STACK_FRAME = re.compile(r'File "(.+?)", line (\d+), in (\S+)\n +(.+)')


@dataclass(frozen=True)
class Frame:
    """One compilation of one Python frame as the compiler recorded it; seconds of each phase alone."""

    name: str
    compile_id: str
    recompile_reason: str
    guard_count: int
    guard_latency_us: float | None
    graph_nodes: int
    dynamo: float
    aot_autograd: float
    inductor: float
    code_gen: float
    cpp_or_triton: float


@dataclass(frozen=True)
class LoggedGraphBreak:
    """A graph break as the compiler logged it; a line of the stack reads `file:line in function: code`."""

    reason: str
    user_stack: tuple[str, ...]


def reset() -> None:
    """Forgets all compiled code and the records about it."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    PyCodeCache.cache_clear()
    inductor_metrics.reset()


def graphs_captured() -> int:
    """Graphs captured since `reset`, over all frames and recompilations."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def take_frames() -> list[Frame]:
    """Frames compiled since the last call, oldest first."""
    records = torch._dynamo.utils.get_compilation_metrics()
    torch._dynamo.utils.clear_compilation_metrics()
    return [_frame(record) for record in records if record.co_name]


def _frame(record: Any) -> Frame:
    """Takes apart torch's phases, which contain each other: frame > AOTAutograd > Inductor > code > C++."""
    nested = [
        (getattr(record, name, None) or 0) / 1e6
        for name in (
            "dynamo_cumulative_compile_time_us",
            "aot_autograd_cumulative_compile_time_us",
            "inductor_cumulative_compile_time_us",
            "inductor_code_gen_cumulative_compile_time_us",
            "triton_compile_time_us",
        )
    ]
    alone = [max(0.0, outer - inner) for outer, inner in zip(nested, [*nested[1:], 0.0], strict=True)]
    return Frame(
        f"{record.co_name} ({Path(record.co_filename or '').name}:{record.co_firstlineno})",
        str(record.compile_id),
        record.recompile_reason or "",
        record.guard_count or 0,
        record.guard_latency_us,
        record.graph_node_count or 0,
        *alone,
    )


class CompilerLog(logging.Handler):
    """Collects what the compiler logs about graph breaks and CUDA graphs."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.graph_breaks: list[LoggedGraphBreak] = []
        self.cuda_graphs: list[tuple[bool, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Sorts one record into the two lists."""
        message = record.getMessage()
        if record.name.endswith(".__graph_breaks"):
            self.graph_breaks.extend(_parse_graph_break(message))
        else:
            self.cuda_graphs.append((record.levelno >= logging.WARNING, message))


@contextmanager
def compiler_log() -> Generator[CompilerLog]:
    """Listens to the compiler's loggers (those of CUDA graphs exist once something was compiled)."""
    handler = CompilerLog()
    suffixes = (".__graph_breaks", ".__cudagraphs")
    loggers = [
        logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.endswith(suffixes)
    ]
    before = [(logger, logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
    try:
        yield handler
    finally:
        for logger, level, propagate in before:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


def _parse_graph_break(message: str) -> list[LoggedGraphBreak]:
    head, _, stack = message.partition(STACK_MARK)
    if REASON_MARK not in head:
        return []
    reason = head.partition(REASON_MARK)[2]
    frames = tuple(
        f"{file}:{line} in {name}: {code}" for file, line, name, code in STACK_FRAME.findall(stack)
    )
    return [LoggedGraphBreak(" ".join(reason.split()), frames)]


def ir_nodes() -> int | None:
    """Operations that Inductor scheduled since `reset`, before fusing them; None where nothing was generated."""
    return inductor_metrics.ir_nodes_pre_fusion or None


def generated_modules() -> list[ModuleType]:
    """The Python modules that Inductor generated or found in its cache in this process since `reset`."""
    return [module for module in PyCodeCache.modules if hasattr(module, "call")]


def source(module: ModuleType) -> str:
    """Source text of a generated module, its kernels included."""
    return Path(str(module.__file__)).read_text(encoding="utf-8")


def count_kernels(text: str) -> int:
    """Fused kernels that a generated module defines."""
    return len(KERNEL.findall(text))


def count_library_calls(text: str) -> int:
    """Calls of operators outside the fused kernels (matrix products, custom operators)."""
    return len(LIBRARY_CALL.findall(text))


class KernelClock:
    """Adds up the time spent inside the kernels and library calls of generated modules."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its running time added to `seconds`."""

        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return run


class _TimedNamespace:
    """Stands in for `extern_kernels` or `torch.ops...`: what is called through it is timed."""

    def __init__(self, target: Any, clock: KernelClock) -> None:
        self._target = target
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        is_namespace = isinstance(value, ModuleType | torch._ops.OpOverloadPacket)
        found = _TimedNamespace(value, self._clock) if is_namespace else self._clock.timed(value)
        setattr(self, name, found)
        return found


class _TimedTorch:
    """Stands in for the `torch` of a generated module: only `torch.ops` is timed."""

    def __init__(self, clock: KernelClock) -> None:
        self.ops = _TimedNamespace(torch.ops, clock)

    def __getattr__(self, name: str) -> Any:
        value = getattr(torch, name)
        setattr(self, name, value)
        return value


@contextmanager
def kernel_clock(modules: list[ModuleType]) -> Generator[KernelClock]:
    """Times everything the generated modules run on a CPU while the context is open.

    Generated code looks kernels up in the globals of its module, so timed versions are put there meanwhile.
    """
    clock = KernelClock()
    saved = [(module, dict(vars(module))) for module in modules]
    for module in modules:
        names = KERNEL.findall(source(module))
        vars(module).update({name: clock.timed(vars(module)[name]) for name in names if name in vars(module)})
        vars(module).update(extern_kernels=_TimedNamespace(vars(module)["extern_kernels"], clock))
        vars(module).update(torch=_TimedTorch(clock))
    try:
        yield clock
    finally:
        for module, values in saved:
            vars(module).update(values)
