"""Every private interface of torch that `mjt` reads, in one file (written for torch 2.11 to 2.14).

Nothing else in this package uses a name of torch with an underscore. What is used:

* `torch._dynamo.utils.get_compilation_metrics`: one record per compiled frame (guards, phases, reason);
* `torch._dynamo.utils.counters`: the number of captured graphs;
* loggers named `*.__graph_breaks` and `*.__cudagraphs`: the texts of `TORCH_LOGS=graph_breaks,cudagraphs`;
* `torch._inductor.codecache.PyCodeCache.modules`: generated modules, to count and time their kernels;
* `torch._inductor.metrics`: the number of operations before fusion;
* `torch._dynamo.eval_frame._debug_get_cache_entry_list`: the guards that a compiled function really has;
* `torch._dynamo.reset` and `PyCodeCache.cache_clear`: forget compiled code.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.eval_frame
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


def name_of(compiled: Callable[..., Any]) -> str:
    """The name under which the compiler records a function made by `torch.compile`."""
    return _code_of(compiled).co_name


def guards_of(compiled: Callable[..., Any]) -> int:
    """Guards that are checked when this function, made by `torch.compile`, is called: those of all its programs.

    The compiler's own record counts guards before a `guard_filter_fn`; these are what is left of them.
    """
    entries = torch._dynamo.eval_frame._debug_get_cache_entry_list(_code_of(compiled))
    return sum(_count_guards(entry.guard_manager.root) for entry in entries)


def _code_of(compiled: Any) -> CodeType:
    return compiled._torchdynamo_orig_callable.__code__


def _count_guards(manager: Any) -> int:
    """Guards of a node of the tree of guards, and of all below it."""
    children = list(manager.get_child_managers())
    if hasattr(manager, "get_key_value_managers"):
        pairs = manager.get_key_value_managers().values()
        children += [child for pair in pairs for child in pair if child is not None]
    own = len(manager.get_leaf_guards()) + len(getattr(manager, "get_epilogue_lambda_guards", list)())
    return own + sum(map(_count_guards, children))


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


class KernelSwitch:
    """Stands between generated modules and their kernels and library calls.

    In a recorded call everything runs, its time is added to `seconds` and its results are kept. In a replayed call
    nothing runs: each kernel or library call at once returns what it returned in the recorded one.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._results: list[Any] = []
        self._replayed: Iterator[Any] | None = None

    def record(self) -> None:
        """Starts a recorded call."""
        self.seconds, self._results, self._replayed = 0.0, [], None

    def replay(self) -> None:
        """Starts a replayed call."""
        self._replayed = iter(self._results)

    def behind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, behind this switch."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._replayed is not None:
                return next(self._replayed)
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds += time.perf_counter() - start
            self._results.append(result)
            return result

        return run


class _SwitchedNamespace:
    """Stands in for `extern_kernels` or `torch.ops...`: what is called through it is switched."""

    def __init__(self, target: Any, switch: KernelSwitch) -> None:
        self._target = target
        self._switch = switch

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        is_namespace = isinstance(value, ModuleType | torch._ops.OpOverloadPacket)
        found = _SwitchedNamespace(value, self._switch) if is_namespace else self._switch.behind(value)
        setattr(self, name, found)
        return found


class _SwitchedTorch:
    """Stands in for the `torch` of a generated module: only `torch.ops` is switched."""

    def __init__(self, switch: KernelSwitch) -> None:
        self.ops = _SwitchedNamespace(torch.ops, switch)

    def __getattr__(self, name: str) -> Any:
        value = getattr(torch, name)
        setattr(self, name, value)
        return value


@contextmanager
def kernel_switch(modules: list[ModuleType]) -> Generator[KernelSwitch]:
    """Puts everything the generated modules run on a CPU behind a switch while the context is open.

    Generated code looks kernels up in the globals of its module, so other functions are put there meanwhile.
    """
    switch = KernelSwitch()
    saved = [(module, dict(vars(module))) for module in modules]
    for module in modules:
        values = vars(module)
        kernels = [name for name in KERNEL.findall(source(module)) if name in values]
        values.update({name: switch.behind(values[name]) for name in kernels})
        values["extern_kernels"] = _SwitchedNamespace(values["extern_kernels"], switch)
        values["torch"] = _SwitchedTorch(switch)
    try:
        yield switch
    finally:
        for module, before in saved:
            vars(module).update(before)
