"""Measures the compiled step once it has settled: speed, time outside kernels, memory."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from mjt_cli.collect import torch_private
from mjt_cli.report import Overhead

SPEED_SECONDS = 20.0
OVERHEAD_CALLS = 10
CPU_METHOD = "median of repeated calls with kernels and library calls replaced by nothing; an upper bound"
CUDA_METHOD = "mean wall time less time of GPU kernels, from torch.profiler; zero where the GPU never waits"


def synchronize(device: str) -> None:
    """Waits for the GPU, if there is one in play."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def seconds_of(run: Callable[[], object], device: str) -> float:
    """Wall seconds of one run, the GPU's work included."""
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def cpu_seconds() -> float:
    """CPU seconds of this process and of the compilers it has waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def calls_per_second(call: Callable[[], object], count: int, device: str) -> float:
    """Rate of `count` calls in a row, or of as many as are made within `SPEED_SECONDS`."""
    made = 0

    def calls() -> None:
        nonlocal made
        deadline = time.perf_counter() + SPEED_SECONDS
        while made < count and time.perf_counter() < deadline:
            call()
            made += 1

    seconds = seconds_of(calls, device)
    return made / seconds


def overhead(step: Callable[[], object], device: str, backend: str) -> Overhead:
    """Estimates the microseconds of one call of `step` spent outside kernels."""
    if backend != "inductor":
        return Overhead(None, f"not measured with backend {backend}")
    if device.startswith("cuda"):
        return Overhead(_cuda_overhead(step, device), CUDA_METHOD)
    return _cpu_overhead(step)


def _cpu_overhead(step: Callable[[], object]) -> Overhead:
    def recorded() -> float:
        switch.record()
        return seconds_of(step, "cpu") - switch.seconds

    def replayed() -> float:
        switch.replay()
        return seconds_of(step, "cpu")

    with torch_private.kernel_switch(torch_private.generated_modules()) as switch:
        outside = statistics.median(recorded() for _ in range(OVERHEAD_CALLS))
        alone = statistics.median(replayed() for _ in range(10 * OVERHEAD_CALLS))
    return Overhead(1e6 * alone, CPU_METHOD, 1e6 * outside)


def _cuda_overhead(step: Callable[[], object], device: str) -> float:
    def calls() -> None:
        for _ in range(OVERHEAD_CALLS):
            step()

    wall = seconds_of(calls, device)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        seconds_of(calls, device)
    kernels = sum(event.self_device_time_total for event in profile.key_averages())
    return max(0.0, 1e6 * wall - kernels) / OVERHEAD_CALLS


def process_peak() -> int:
    """Largest resident memory of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peak_of(run: Callable[[], object]) -> int | None:
    """Bytes by which resident memory rose at most during `run`; None where the system cannot tell."""
    clear = Path("/proc/self/clear_refs")
    try:
        clear.write_text("5", encoding="ascii")
        before = _status("VmRSS")
    except OSError:
        run()
        return None
    run()
    return max(0, _status("VmHWM") - before)


def give_back_memory() -> None:
    """Gives memory that was freed back to the system, so that a later peak is not hidden in it (glibc only)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim:
        trim(0)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(key + ":"):
            return 1024 * int(line.split()[1])
    raise OSError(f"no {key} in /proc/self/status")
