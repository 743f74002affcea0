"""The process that compiles: `python -m mjt_cli.collect.worker`, a `Job` as JSON on its stdin.

It answers on its stdout, one JSON object a line: `{"phase": name}` when a phase starts, and last
`{"report": text}`, the report in its JSON form. Whatever else writes to stdout (a C++ compiler, say) is sent to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TextIO

import torch

import mujoco_torch as mjt
from mjt_cli.collect import blocks, measure, parity, scenario, torch_private
from mjt_cli.collect.job import Job
from mjt_cli.collect.models import load_model
from mjt_cli.errors import one_line
from mjt_cli.findings import findings
from mjt_cli.report import (
    Call,
    CompileSeconds,
    CudaGraphs,
    Finding,
    FrameGuards,
    GeneratedCode,
    GraphBreak,
    ModelSize,
    Recompilation,
    Report,
    to_json,
)

CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")
WARM_UP_STEPS = 3


@dataclass
class Run:
    """One job at work: the report it fills, and where it says what it is doing."""

    job: Job
    report: Report
    phase: Callable[[str], None]


def diagnose(job: Job, report: Report, phase: Callable[[str], None]) -> None:
    """Fills the report, phase by phase; what was filled before an exception stays."""
    run = Run(job, report, phase)
    if job.threads:
        torch.set_num_threads(job.threads)
    report.threads = torch.get_num_threads()
    report.versions = versions()
    imports = measure.process_peak()
    phase("loading the model")
    scene = load_scene(run)
    phase("probing the tool chain")
    report.compile_seconds.toolchain_probe = probe_toolchain(job)
    torch_private.reset()
    step = compiled_step(job, scene)
    live(run, scene, step)
    d = steady(run, scene, step)
    report.memory.process = max(0, measure.process_peak() - imports)
    compare(run, scene, step, d)
    if job.blocks and job.device == "cpu" and job.backend == "inductor":
        blocks.look(report, scene, phase)
    report.findings = findings(report)


def versions() -> dict[str, str]:
    """Versions of what decides the outcome."""
    found = {"python": sys.version.split()[0], "torch": torch.__version__}
    for name in ("mujoco", "tensordict", "mujoco-torch", "mjt-cli"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def load_scene(run: Run) -> scenario.Scene:
    """Loads the model and puts it on the device; records its size."""
    job, report = run.job, run.report
    model = load_model(job.path)
    mjm = model.mjm
    report.model_size = ModelSize(str(model.path), mjm.nq, mjm.nv, mjm.nu, mjm.nbody, mjm.ngeom)
    report.cuda_graphs = cuda_graphs_apply(job)
    return scenario.make_scene(mjm, batch=job.batch, dtype=getattr(torch, job.dtype), device=job.device)


def cuda_graphs_apply(job: Job) -> CudaGraphs:
    """Whether this run records CUDA graphs, and if not, why."""
    if not job.device.startswith("cuda"):
        return CudaGraphs(False, "the batch is on the CPU, and CUDA graphs replay work of a GPU only")
    if job.mode not in CUDA_GRAPH_MODES:
        return CudaGraphs(
            False, f"mode {job.mode} does not ask for them ({' and '.join(CUDA_GRAPH_MODES)} do)"
        )
    return CudaGraphs(True)


def probe_toolchain(job: Job) -> float:
    """Seconds to compile a trivial function: what the first compilation of a process pays once."""
    if job.backend != "inductor":
        return 0.0
    x = torch.ones(8, dtype=getattr(torch, job.dtype), device=job.device)
    return measure.seconds_of(lambda: torch.compile(lambda x: x + 1)(x), job.device)


def compiled_step(job: Job, scene: scenario.Scene) -> Callable[[mjt.Data], mjt.Data]:
    """The compiled step over one batch. Graph breaks are let through, so that all of them are seen.

    Recorded CUDA graphs write their results to the same memory at every call, so results are cloned before
    they are fed back.
    """
    if job.backend == "inductor":
        compiled = torch.compile(mjt.step, mode=job.mode)
    else:
        compiled = torch.compile(mjt.step, backend=job.backend)
    if not cuda_graphs_apply(job).applies:
        return lambda d: compiled(scene.m, d)

    def step(d: mjt.Data) -> mjt.Data:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(scene.m, d).clone()

    return step


def live(run: Run, scene: scenario.Scene, step: Callable[[mjt.Data], mjt.Data]) -> None:
    """Runs the scripted life and records what was compiled during each of its calls."""
    report = run.report
    with torch_private.compiler_log() as log:
        for name, call in scenario.life(scene, step):
            run.phase(name if report.life else f"{name} (compiling)")
            cpu = measure.cpu_seconds()
            seconds = measure.seconds_of(call, run.job.device)
            record_call(report, name, seconds, measure.cpu_seconds() - cpu, log)
    if report.cuda_graphs and report.cuda_graphs.applies:
        report.cuda_graphs.skips = [text for is_skip, text in log.cuda_graphs if is_skip]
        report.cuda_graphs.partitions = [
            text.strip() for is_skip, text in log.cuda_graphs if is_partition(text)
        ]


def is_partition(text: str) -> bool:
    """Whether a line of the CUDA graph log counts or describes partitions."""
    return "graph partitions" in text or text.lstrip().startswith("Partition ") or "reason=" in text


def record_call(
    report: Report, name: str, seconds: float, cpu: float, log: torch_private.CompilerLog
) -> None:
    """Adds one call of the life, and the frames and graph breaks that it caused, to the report."""
    frames = torch_private.take_frames()
    if not report.life:
        report.graphs = torch_private.graphs_captured()
        report.code = generated_code(frames)
    report.life.append(Call(name, seconds, cpu, len(frames)))
    for frame in frames:
        if frame.recompile_reason:
            report.recompilations.append(Recompilation(frame.name, name, frame.recompile_reason))
        guards = FrameGuards(frame.name, frame.compile_id, frame.guard_count, frame.guard_latency_us)
        report.guards.frames.append(guards)
        add_phases(report.compile_seconds, frame)
    report.graph_breaks += [GraphBreak(b.reason, below_here(b.user_stack), name) for b in log.graph_breaks]
    log.graph_breaks.clear()


def below_here(stack: Sequence[str]) -> list[str]:
    """The lines of a stack below the last one in this package: what the step itself called."""
    ours = [index for index, line in enumerate(stack) if line.startswith(str(Path(__file__).parent))]
    return list(stack[ours[-1] + 1 :] if ours else stack)


def add_phases(total: CompileSeconds, frame: torch_private.Frame) -> None:
    """Adds the phases of one frame to the sums."""
    for name in ("dynamo", "aot_autograd", "inductor", "code_gen", "cpp_or_triton"):
        seconds = getattr(frame, name)
        setattr(total, name, getattr(total, name) + seconds)
        total.total += seconds


def generated_code(frames: Sequence[torch_private.Frame]) -> GeneratedCode:
    """Size of the graphs of these frames, and of what Inductor generated since the probe."""
    texts = [torch_private.source(module) for module in torch_private.generated_modules()]
    return GeneratedCode(
        sum(frame.graph_nodes for frame in frames),
        torch_private.ir_nodes(),
        sum(torch_private.count_kernels(text) for text in texts),
        sum(torch_private.count_library_calls(text) for text in texts),
        sum(text.count("\n") for text in texts),
    )


def steady(run: Run, scene: scenario.Scene, step: Callable[[mjt.Data], mjt.Data]) -> mjt.Data:
    """Measures speed, time outside kernels and memory over fed-back steps; returns the last data."""
    job, report = run.job, run.report
    run.phase("steady steps")
    state = [scene.fresh()]

    def advance() -> None:
        state[0] = step(state[0])

    for _ in range(WARM_UP_STEPS):
        advance()
    if job.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(job.device)
    rates = []
    report.memory.steady = measure.peak_of(
        lambda: rates.append(measure.calls_per_second(advance, job.steps, job.device))
    )
    report.steps_per_second = job.batch * rates[0]
    if job.device.startswith("cuda"):
        report.memory.device = torch.cuda.max_memory_allocated(job.device)
    report.nan_worlds = parity.bad_worlds(state[0])
    run.phase("time outside kernels")
    report.overhead = measure.overhead(lambda: step(state[0]), job.device, job.backend)
    return state[0]


def compare(run: Run, scene: scenario.Scene, step: Callable[[mjt.Data], mjt.Data], d: mjt.Data) -> None:
    """Compares one compiled step from `d` with eager, and with MuJoCo C."""
    run.phase("comparing with eager and with MuJoCo C")
    after = step(d)
    run.report.compiled_vs_eager = parity.compare_data(after, mjt.step(scene.m, d), run.job.dtype)
    run.report.parity = parity.compare_with_c(scene.mjm, d, after, run.job.dtype)


def work(job: Job, send: Callable[[dict[str, str]], None]) -> None:
    """Runs the job and sends its report, also when it fails on the way: the failure is then a finding."""
    report = job.empty_report()
    phases = ["starting"]

    def phase(name: str) -> None:
        phases.append(name)
        send({"phase": name})

    start = time.perf_counter()
    try:
        diagnose(job, report, phase)
    except Exception as error:
        traceback.print_exc()
        seconds = time.perf_counter() - start
        text = (
            f"{phases[-1]} failed after {seconds:.0f} s: {type(error).__name__}: {one_line(str(error), 300)}"
        )
        report.findings = [Finding("failed", text), *findings(report)]
    send({"report": to_json(report)})


def claim_stdout() -> TextIO:
    """The real stdout for messages only; file descriptor 1 becomes stderr for everything else."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return channel


def main() -> None:
    """Reads the job from stdin and works on it."""
    channel = claim_stdout()
    job = Job(**json.load(sys.stdin))
    work(job, lambda message: print(json.dumps(message), file=channel, flush=True))


if __name__ == "__main__":
    main()
