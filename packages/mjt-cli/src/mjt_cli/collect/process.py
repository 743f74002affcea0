"""Runs the worker in a fresh process with its own caches, and passes on what it says."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import IO, Any

from mjt_cli.bench_report import BenchReport, bench_from_json
from mjt_cli.collect.job import BenchJob, Job
from mjt_cli.errors import one_line
from mjt_cli.report import Finding, Report, from_json

POLL_SECONDS = 0.2
WORKER = [sys.executable, "-P", "-m", "mjt_cli.collect.worker"]
BENCH_WORKER = [sys.executable, "-P", "-m", "mjt_cli.collect.bench"]


class WorkerFailedError(Exception):
    """A worker died or took too long; the message says how."""


def run_worker(job: Job, *, timeout: float, phase: Callable[[str], None]) -> Report:
    """Diagnoses in a fresh process; calls `phase` with the name of each phase.

    A worker that dies or takes longer than `timeout` seconds gives a report with one `failed` finding.
    """
    try:
        return from_json(run(WORKER, job, timeout, phase))
    except WorkerFailedError as error:
        report = job.empty_report()
        report.findings = [Finding("failed", str(error))]
        return report


def run_bench(job: BenchJob, *, timeout: float, phase: Callable[[str], None]) -> BenchReport:
    """Measures in a fresh process; a worker that dies or takes too long gives a report with an `error`."""
    try:
        return bench_from_json(run(BENCH_WORKER, job, timeout, phase))
    except WorkerFailedError as error:
        report = job.empty_report()
        report.error = str(error)
        return report


def run(command: list[str], job: Job | BenchJob, timeout: float, phase: Callable[[str], None]) -> str:
    """The report, as JSON, of a worker that is given this job; raises `WorkerFailedError` where there is none."""
    with cache_environment(job.caches) as environment, tempfile.TemporaryFile() as log:
        worker = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
            start_new_session=True,
        )
        try:
            assert worker.stdin and worker.stdout
            worker.stdin.write(json.dumps(asdict(job)))
            worker.stdin.close()
            for message in messages(worker.stdout, timeout):
                if "report" in message:
                    return message["report"]
                phase(message["phase"])
            raise WorkerFailedError(death_note(worker.wait(), log))
        except TimeoutError:
            raise WorkerFailedError(f"not finished after {timeout:g} s (--timeout)") from None
        finally:
            end(worker)


@contextmanager
def cache_environment(caches: str) -> Generator[dict[str, str]]:
    """The environment of the worker: with empty compile caches, removed afterwards, or the user's own."""
    if caches == "warm":
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory(prefix="mjt-", ignore_cleanup_errors=True) as folder:
        triton = os.path.join(folder, "triton")
        yield {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": triton}


def messages(stream: IO[str], timeout: float) -> Iterator[dict[str, Any]]:
    """The worker's messages as they come; raises `TimeoutError` once `timeout` seconds have passed."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            line = lines.get(timeout=POLL_SECONDS)
        except queue.Empty:
            continue
        if line is None:
            return
        yield json.loads(line)
    raise TimeoutError


def death_note(status: int, log: IO[bytes]) -> str:
    """Why a worker died: its exit status and the last line it wrote."""
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return f"the worker process {how}: {one_line(lines[-1], 300) if lines else 'it said nothing'}"


def end(worker: subprocess.Popen[str]) -> None:
    """Ends the worker and the compilers it started."""
    if worker.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    if worker.stdout:
        worker.stdout.close()
