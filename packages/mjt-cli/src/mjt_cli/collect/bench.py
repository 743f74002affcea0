"""The process that measures: `python -m mjt_cli.collect.bench`, a `BenchJob` as JSON on its stdin.

It answers as the worker of `mjt diagnose` does.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import mujoco_torch as mjt
from mjt_cli.bench_report import BenchReport, Contestant, summarize
from mjt_cli.collect import measure, parity
from mjt_cli.collect.contestants import InC, Rollout, Runner, Steps, start_data
from mjt_cli.collect.environment import machine
from mjt_cli.collect.job import BenchJob
from mjt_cli.collect.models import load_model
from mjt_cli.collect.starts import SAMPLE, Reference, make_starts, reference
from mjt_cli.collect.worker import claim_stdout, versions
from mjt_cli.errors import one_line
from mjt_cli.report import ModelSize, to_json

C_NAME = "mujoco.rollout (C)"
C_FOR_A_GPU = "MuJoCo C is measured on the host's threads: it does not run on a GPU"
SAME_ON_A_GPU = "on a GPU keep has no effect: the step is one graph that writes all fields"
SHARED_PROGRAM = (
    "keep=() and the rollout are one program: where the cache serves it, compiling the second is loading it"
)


@dataclass
class Entry:
    """A contestant and what runs it; `make` prepares, the first step compiles."""

    result: Contestant
    make: Callable[[], Runner]
    runner: Runner | None = None


def bench(job: BenchJob, report: BenchReport, phase: Callable[[str], None]) -> None:
    """Fills the report, phase by phase; what was filled before an exception stays."""
    torch.set_grad_enabled(False)
    if job.threads:
        torch.set_num_threads(job.threads)
    threads = report.threads = torch.get_num_threads()
    report.versions, report.machine = versions(), machine()
    report.load_average.append(os.getloadavg()[0])
    phase("loading the model")
    model = load_model(job.path)
    mjm = model.mjm
    report.model_size = ModelSize(str(model.path), mjm.nq, mjm.nv, mjm.nu, mjm.nbody, mjm.ngeom)
    report.timestep = float(mjm.opt.timestep)
    phase("settling the worlds in MuJoCo C")
    starts = make_starts(mjm, job.batch, threads)
    report.contacts_per_world = starts.contacts_per_world
    expected = reference(mjm, starts, job.steps)
    m = mjt.put_model(mjm, device=job.device, dtype=getattr(torch, job.dtype))
    d = start_data(m, starts)
    phase("probing the tool chain")
    report.toolchain_probe = probe_toolchain(job, m)
    iterations = int(mjm.opt.iterations)
    ours = {
        "compile(step)": lambda: Steps(m, d, job.steps, iterations, mode=job.mode),
        "compile(step, keep=())": lambda: Steps(m, d, job.steps, iterations, mode=job.mode, keep=()),
        "compile(rollout)": lambda: Rollout(m, d, job.steps, mode=job.mode),
    }
    entries = [Entry(Contestant(name, job.device, threads), make) for name, make in ours.items()]
    in_c = Entry(Contestant(C_NAME, "cpu", threads), lambda: InC(mjm, starts, job.steps, threads, expected))
    entries.append(in_c)
    report.contestants = [entry.result for entry in entries]
    report.notes = [C_FOR_A_GPU, SAME_ON_A_GPU] if job.device != "cpu" else [SHARED_PROGRAM]
    for entry in entries:
        prepare(entry, job, expected, phase)
    rounds(entries, job, report, phase)
    summarize(report, in_c.result)


def probe_toolchain(job: BenchJob, m: mjt.Model) -> float:
    """Seconds that the first compilation of a process pays once: a trivial function, the library's own kernels."""
    options: dict[str, Any] = {"cpp_wrapper": True} if job.device == "cpu" else {}
    x = torch.ones(8, dtype=m.dtype, device=job.device)
    trivial = torch.compile(lambda x: x + 1, options=options)

    def first() -> None:
        trivial(x)
        mjt.step(m, mjt.make_data(m, 1))

    return measure.seconds_of(first, job.device)


def prepare(entry: Entry, job: BenchJob, expected: Reference, phase: Callable[[str], None]) -> None:
    """Compiles by a first step, compares it with C, then makes one run that counts for memory only."""
    result = entry.result
    compiles = result.name != C_NAME
    phase(f"{result.name}: {'compiling' if compiles else 'preparing'}")
    runner = entry.runner = entry.make()
    cpu, qvel = measure.cpu_seconds(), []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RuntimeWarning)
        seconds = measure.seconds_of(lambda: qvel.append(runner.one_step()), job.device)
    result.notes = [str(warning.message) for warning in told if issubclass(warning.category, RuntimeWarning)]
    if compiles:
        result.compile_seconds, result.compile_cpu_seconds = seconds, measure.cpu_seconds() - cpu
    pairs = zip(qvel[0][:SAMPLE], expected.qvel, strict=True)
    result.qvel_error = max(parity.relative_error(ours, theirs) for ours, theirs in pairs)
    phase(f"{result.name}: memory")
    peak = memory_of(runner, job.device if compiles else "cpu")
    result.bytes_per_world = None if peak is None else (peak + runner.held()) / job.batch
    result.converged = runner.converged()


def memory_of(runner: Runner, device: str) -> int | None:
    """Bytes by which memory rises during a run: of the process, or of the GPU."""
    runner.run()
    measure.give_back_memory()
    if device == "cpu":
        return measure.peak_of(runner.run)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    runner.run()
    measure.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def rounds(entries: list[Entry], job: BenchJob, report: BenchReport, phase: Callable[[str], None]) -> None:
    """Measures the contestants in turns."""
    for turn in range(1, job.rounds + 1):
        for entry in entries:
            assert entry.runner
            phase(f"round {turn} of {job.rounds}: {entry.result.name}")
            report.load_average.append(os.getloadavg()[0])
            seconds = measure.seconds_of(entry.runner.run, job.device)
            entry.result.steps_per_second.append(job.batch * job.steps / seconds)


def work(job: BenchJob, send: Callable[[dict[str, str]], None]) -> None:
    """Runs the job and sends its report, also when it fails on the way."""
    report, phases = job.empty_report(), ["starting"]

    def phase(name: str) -> None:
        phases.append(name)
        send({"phase": name})

    try:
        bench(job, report, phase)
    except Exception as error:
        traceback.print_exc()
        report.error = f"{phases[-1]} failed: {type(error).__name__}: {one_line(str(error), 300)}"
    send({"report": to_json(report)})


def main() -> None:
    """Reads the job from stdin and works on it."""
    channel = claim_stdout()
    job = BenchJob(**json.load(sys.stdin))
    work(job, lambda message: print(json.dumps(message), file=channel, flush=True))


if __name__ == "__main__":
    main()
