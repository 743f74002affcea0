"""The parts that look inside torch, on small functions and small models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mjt_cli.collect import blocks, measure, parity, process, torch_private, worker
from mjt_cli.collect.job import Job
from mjt_cli.report import Report

X = torch.ones(4)


def broken(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x + 1


def test_graph_breaks_carry_reason_and_stack():
    torch_private.reset()
    with torch_private.compiler_log() as log:
        torch.compile(broken, backend="eager")(X)
    (found,) = log.graph_breaks
    assert "graph_break" in found.reason
    assert found.user_stack[-1].startswith(__file__)
    assert found.user_stack[-1].endswith("in broken: torch._dynamo.graph_break()")


def test_frames_tell_recompilations():
    torch_private.reset()
    compiled = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    compiled(X)
    (first,) = torch_private.take_frames()
    assert first.recompile_reason == ""
    assert first.guard_count > 0
    compiled(X.double())
    (second,) = torch_private.take_frames()
    assert "dtype" in second.recompile_reason
    assert torch_private.graphs_captured() == 2
    compiled(X)
    assert torch_private.take_frames() == []


def test_guards_are_counted_in_the_compiled_function():
    torch_private.reset()

    def dropped(guards) -> list[bool]:
        return [False] * len(guards)

    bare = torch.compile(lambda x: x + 1, backend="eager", options={"guard_filter_fn": dropped})
    guarded = torch.compile(lambda x: x + 2, backend="eager")
    for compiled in (bare, guarded):
        assert torch_private.guards_of(compiled) == 0
        compiled(X)
    assert torch_private.guards_of(bare) == 0
    once = torch_private.guards_of(guarded)
    assert once > 0
    guarded(X.double())
    assert torch_private.guards_of(guarded) > once


def test_pieces_are_replaced_and_put_back():
    class Piece:
        calls = 0

        def run(self, x: int) -> int:
            self.calls += 1
            return x + 1

    class Engine:
        pieces = (Piece(), Piece())

        def step(self) -> int:
            return sum(piece.run(1) for piece in self.pieces)

    engine = Engine()
    with blocks.pieces_replaced(engine.step, engine.step):
        assert [engine.step() for _ in range(5)] == [4] * 5
        assert [piece.calls for piece in engine.pieces] == [1, 1]
    engine.step()
    assert [piece.calls for piece in engine.pieces] == [2, 2]


def test_phases_are_taken_apart():
    record = type(
        "Record", (), dict.fromkeys(("guard_count", "guard_latency_us", "recompile_reason"), None)
    )()
    record.co_name, record.co_filename, record.co_firstlineno = "f", "/a/b.py", 3
    record.compile_id, record.graph_node_count = "0/0", 5
    record.dynamo_cumulative_compile_time_us = 10_000_000
    record.aot_autograd_cumulative_compile_time_us = 9_000_000
    record.inductor_cumulative_compile_time_us = 7_000_000
    record.inductor_code_gen_cumulative_compile_time_us = 4_000_000
    record.triton_compile_time_us = 3_000_000
    frame = torch_private._frame(record)
    phases = (frame.dynamo, frame.aot_autograd, frame.inductor, frame.code_gen, frame.cpp_or_triton)
    assert phases == (1.0, 2.0, 3.0, 1.0, 3.0)
    assert frame.name == "f (b.py:3)"


def test_generated_source_is_counted():
    text = (
        "cpp_fused_a_0 = async_compile.cpp_pybinding(['double*'], '''\n...''')\n"
        "triton_poi_1 = async_compile.triton('x', '''\n''')\n"
        "        extern_kernels.bmm(a, b, out=c)\n"
        "        buf1 = torch.ops.mine.solve.default(c)\n"
    )
    assert torch_private.count_kernels(text) == 2
    assert torch_private.count_library_calls(text) == 2


def test_switch_records_and_replays():
    switch = torch_private.KernelSwitch()
    calls = []
    kernel = switch.behind(lambda x: calls.append(x) or len(calls))
    switch.record()
    assert (kernel("a"), kernel("b")) == (1, 2)
    switch.replay()
    assert (kernel("a"), kernel("b")) == (1, 2)
    assert calls == ["a", "b"]
    assert switch.seconds > 0.0


@pytest.mark.parametrize(
    ("got", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([0.5], [0.25], 0.25),
        ([11.0], [10.0], 0.1),
        ([np.nan, np.inf], [np.nan, np.inf], 0.0),
        ([], [], 0.0),
    ],
)
def test_relative_error(got: list[float], expected: list[float], error: float):
    assert parity.relative_error(np.array(got), np.array(expected)) == error


@pytest.mark.parametrize(("got", "expected"), [([np.nan], [1.0]), ([1.0], [np.nan]), ([1.0], [1.0, 2.0])])
def test_relative_error_without_a_number(got: list[float], expected: list[float]):
    assert np.isnan(parity.relative_error(np.array(got), np.array(expected)))


def test_cuda_graphs_say_why_they_do_not_apply():
    def answer(device: str, mode: str):
        return worker.cuda_graphs_apply(job(device=device, mode=mode))

    assert "CPU" in answer("cpu", "reduce-overhead").reason
    assert "default" in answer("cuda", "default").reason
    assert answer("cuda:1", "max-autotune").applies


def test_peak_of_sees_memory():
    peak = measure.peak_of(lambda: torch.ones(16 * 2**20, dtype=torch.uint8).sum())
    assert peak is None or peak > 8 * 2**20


def test_rate_counts_the_calls_made(monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    assert measure.calls_per_second(lambda: calls.append(1), 7, "cpu") > 0
    assert len(calls) == 7
    monkeypatch.setattr(measure, "SPEED_SECONDS", 0.01)
    measure.calls_per_second(lambda: calls.append(process.time.sleep(0.01)), 1000, "cpu")
    assert len(calls) < 20


def test_failure_is_a_finding_of_the_report(monkeypatch: pytest.MonkeyPatch):
    def fail(job: Job, report: Report, phase) -> None:
        phase("first step (compiling)")
        report.graphs = 1
        raise RuntimeError("C++ compiler\nran out of memory")

    monkeypatch.setattr(worker, "diagnose", fail)
    sent: list[dict[str, str]] = []
    worker.work(job(), sent.append)
    report = process.from_json(sent[-1]["report"])
    (finding,) = report.findings
    assert finding.kind == "failed"
    assert "RuntimeError: C++ compiler ran out of memory" in finding.message
    assert report.graphs == 1


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["import time; time.sleep(60)"], "not finished after 1 s"),
        (["import sys; sys.exit('no torch here')"], "ended with status 1: no torch here"),
        (["import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], "killed by signal 9"),
    ],
)
def test_a_worker_that_dies_or_hangs(monkeypatch: pytest.MonkeyPatch, command: list[str], told: str):
    monkeypatch.setattr(process, "WORKER", [process.sys.executable, "-c", *command])
    report = process.run_worker(
        job(), timeout=1.0 if "sleep" in command[0] else 60.0, phase=lambda name: None
    )
    (finding,) = report.findings
    assert finding.kind == "failed"
    assert told in finding.message


def test_cold_caches_are_empty_and_removed():
    with process.cache_environment("cold") as environment:
        folder = environment["TORCHINDUCTOR_CACHE_DIR"]
        assert process.os.listdir(folder) == []
    assert not process.os.path.exists(folder)


def job(device: str = "cpu", mode: str = "default") -> Job:
    return Job("pendulum.xml", "pendulum", mode, "inductor", device, "float64", 2, 1, None, "cold")
