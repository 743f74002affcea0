"""What `mjt diagnose` found, as plain values: the worker fills a `Report`, the parent prints it.

`to_json` and `from_json` are the two directions of the JSON form of docs/cli.md (`schema_version` 1).
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1
GUARD_BUDGET = 250
OVERHEAD_BUDGET_US = 300.0
COMPILED_TOLERANCE = {"float64": 1e-12, "float32": 1e-4}
PARITY_TOLERANCE = {"float64": 1e-6, "float32": 1e-2}

FINDING_KINDS = (
    "graph-break",
    "recompile",
    "guards",
    "overhead",
    "parity",
    "nan",
    "cudagraph-skip",
    "compiled-mismatch",
    "failed",
)


@dataclass
class ModelSize:
    """Where the model was found and how large it is."""

    path: str
    nq: int
    nv: int
    nu: int
    nbody: int
    ngeom: int


@dataclass
class Call:
    """One call of the scripted life: wall and CPU seconds (compilers included), frames compiled during it."""

    name: str
    seconds: float
    cpu_seconds: float
    compiled_frames: int


@dataclass
class GraphBreak:
    """One graph break: the compiler's reason, and the user's stack, outermost line first."""

    reason: str
    user_stack: list[str]
    call: str


@dataclass
class Recompilation:
    """One recompilation: the frame, the call of the life that caused it, the guard that failed."""

    frame: str
    call: str
    reason: str


@dataclass
class FrameGuards:
    """Guards of one compiled frame, and the microseconds one check of them takes."""

    frame: str
    compile_id: str
    count: int
    latency_us: float | None


@dataclass
class Guards:
    """Guards per frame against the budget of one frame."""

    frames: list[FrameGuards] = field(default_factory=list)
    budget: int = GUARD_BUDGET

    @property
    def worst(self) -> int:
        """Guards of the frame that has most."""
        return max((frame.count for frame in self.frames), default=0)


@dataclass
class CompileSeconds:
    """Wall seconds of each phase alone; `total` is their sum without the one-time `toolchain_probe`."""

    dynamo: float = 0.0
    aot_autograd: float = 0.0
    inductor: float = 0.0
    code_gen: float = 0.0
    cpp_or_triton: float = 0.0
    toolchain_probe: float = 0.0
    total: float = 0.0


@dataclass
class GeneratedCode:
    """Size of what the first call compiled.

    `graph_nodes` are those of Dynamo's graphs, `ir_nodes` the operations that Inductor then fused into `kernels` (None
    where a cache spared it the work), `library_calls` the calls of operators it did not generate, `lines` of source.
    """

    graph_nodes: int = 0
    ir_nodes: int | None = None
    kernels: int = 0
    library_calls: int = 0
    lines: int = 0


@dataclass
class CudaGraphs:
    """Whether CUDA graphs apply to this run (if not, `reason` says why), their partitions, the skips."""

    applies: bool
    reason: str = ""
    partitions: list[str] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)


@dataclass
class Overhead:
    """Microseconds of one call spent outside kernels, and how that was estimated.

    `in_real_calls` is, where known, what real calls spend outside kernels: it grows with the batch, since it has the
    giving back of memory to the system, and with the load of the machine.
    """

    microseconds: float | None
    method: str
    in_real_calls: float | None = None
    budget: float = OVERHEAD_BUDGET_US


@dataclass
class Memory:
    """Peak bytes: of the process above its imports (with compiling), of the steady steps, of the GPU."""

    process: int | None = None
    steady: int | None = None
    device: int | None = None


@dataclass
class Comparison:
    """Worst relative error of each field of a comparison: max|a - b| / max(1, max|b|) over the field."""

    errors: dict[str, float | None]
    tolerance: float
    worlds: int

    @property
    def worst_field(self) -> str:
        """Name of the field with the largest error."""
        return max(self.errors, key=lambda name: _rank(self.errors[name]), default="")

    @property
    def worst(self) -> float | None:
        """Largest error; None or NaN where a number was expected and there is none."""
        return self.errors.get(self.worst_field, 0.0)

    @property
    def within(self) -> bool:
        """Whether all errors are within the tolerance."""
        return _rank(self.worst) <= self.tolerance


@dataclass
class Blocks:
    """What `mujoco_torch.compile(step)` makes of the step on a CPU: blocks of worlds on threads.

    `block` worlds are in each of the batch's `count` blocks. `pieces` are the functions that were compiled, `guards`
    those of all of them together. Seconds are those of the first call, without `toolchain_probe`. `overhead` is
    of one call with one block, `batch_overhead` of one with the whole batch, state copied in and results out.
    """

    block: int
    count: int
    toolchain_probe: float = 0.0
    compile_seconds: float | None = None
    compile_cpu_seconds: float | None = None
    life: list[Call] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    guards: int | None = None
    recompilations: list[Recompilation] = field(default_factory=list)
    steps_per_second: float | None = None
    overhead: Overhead | None = None
    batch_overhead: Overhead | None = None
    compiled_vs_eager: Comparison | None = None
    notes: list[str] = field(default_factory=list)


@dataclass
class Finding:
    """One thing worth acting on; `kind` is one of `FINDING_KINDS`."""

    kind: str
    message: str


@dataclass
class Report:
    """Everything one run of `mjt diagnose` learned. A value that was not reached is null or empty."""

    model: str
    mode: str
    device: str
    dtype: str
    batch: int
    steps: int
    threads: int | None = None
    backend: str = "inductor"
    caches: str = "cold"
    schema_version: int = SCHEMA_VERSION
    model_size: ModelSize | None = None
    versions: dict[str, str] = field(default_factory=dict)
    life: list[Call] = field(default_factory=list)
    graphs: int = 0
    graph_breaks: list[GraphBreak] = field(default_factory=list)
    recompilations: list[Recompilation] = field(default_factory=list)
    guards: Guards = field(default_factory=Guards)
    compile_seconds: CompileSeconds = field(default_factory=CompileSeconds)
    code: GeneratedCode = field(default_factory=GeneratedCode)
    cuda_graphs: CudaGraphs | None = None
    steps_per_second: float | None = None
    overhead: Overhead | None = None
    memory: Memory = field(default_factory=Memory)
    nan_worlds: int = 0
    compiled_vs_eager: Comparison | None = None
    parity: Comparison | None = None
    blocks: Blocks | None = None
    findings: list[Finding] = field(default_factory=list)


def _rank(error: float | None) -> float:
    """Order of an error in which "no number" (NaN) is the worst."""
    return math.inf if error is None or math.isnan(error) else error


def dumps(value: Any) -> str:
    """Indented JSON of a plain value; numbers that JSON cannot hold become null."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def to_json(report: Any) -> str:
    """A report (a dataclass) in its documented JSON form, `schema_version` first."""
    plain = dataclasses.asdict(report)
    return dumps({"schema_version": plain.pop("schema_version"), **plain})


def from_json(text: str) -> Report:
    """The report that `to_json` wrote."""
    return build(Report, json.loads(text))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def build(kind: Any, value: Any) -> Any:
    """Rebuilds a value of the annotated type `kind` (dataclasses, lists, optional and plain values)."""
    if value is None:
        return None
    if isinstance(kind, types.UnionType):
        kind = next(option for option in typing.get_args(kind) if option is not types.NoneType)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: build(hints[name], item) for name, item in value.items()})
    if typing.get_origin(kind) is list:
        (item_kind,) = typing.get_args(kind)
        return [build(item_kind, item) for item in value]
    return value
