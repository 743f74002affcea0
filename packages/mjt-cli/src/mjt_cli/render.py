"""Prints reports for people, on stdout; rich itself honours `NO_COLOR` and pipes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import mujoco_torch as mjt
from mjt_cli.collect.environment import SETTINGS, Environment
from mjt_cli.commands.verdict import Verdict
from mjt_cli.errors import one_line
from mjt_cli.report import Blocks, Call, Comparison, CompileSeconds, Overhead, Recompilation, Report

PIPE_WIDTH = 160
ELEMENTS_SHOWN = 4
GOOD, BAD, PLAIN = "[green]ok[/green]", "[red]!![/red]", ""


def console() -> Console:
    """Console on stdout; a pipe has no width of its own and gets a generous one."""
    probe = Console()
    return probe if probe.is_terminal else Console(width=PIPE_WIDTH)


def print_report(report: Report) -> None:
    """Prints what `mjt diagnose` found."""
    out = console()
    out.print(f"[bold]{escape(report.model)}[/bold]  {_setting(report)}")
    table = Table.grid(padding=(0, 2))
    table.add_column(width=2)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for mark, name, value in _rows(report):
        table.add_row(mark, name, escape(value))
    out.print(table)
    _print_details(out, report)
    _print_findings(out, report)


def _setting(report: Report) -> str:
    size = report.model_size
    shape = f"nq {size.nq}, nv {size.nv}, nu {size.nu} | " if size else ""
    threads = f" | threads {report.threads}" if report.threads else ""
    backend = "" if report.backend == "inductor" else f" | backend {report.backend}"
    where = f"{report.device}{threads} | {report.dtype} | batch {report.batch}"
    return f"{shape}{where} | mode {report.mode}{backend} | {report.caches} caches"


def _rows(report: Report) -> Iterable[tuple[str, str, str]]:
    """Mark, name and value of each line of the report; what was not measured has no line."""
    if not report.life:
        return
    yield _mark(report.graphs == 1), "Graphs", str(report.graphs)
    yield _mark(not report.graph_breaks), "Graph breaks", str(len(report.graph_breaks))
    yield _mark(not report.recompilations), "Recompilations", _life(report.recompilations, report.life)
    yield _mark(report.guards.worst <= report.guards.budget), "Guards", _guards(report)
    yield PLAIN, "Compile time", _compile_time(report.compile_seconds, report.life[0])
    yield PLAIN, "Generated code", _code(report)
    if report.cuda_graphs:
        yield _mark(not report.cuda_graphs.skips), "CUDA graphs", _cuda_graphs(report)
    if report.steps_per_second:
        milliseconds = 1e3 * report.batch / report.steps_per_second
        yield PLAIN, "Speed", f"{report.steps_per_second:,.0f} steps/s ({milliseconds:.3g} ms a call)"
    if report.overhead:
        yield _overhead_mark(report.overhead), "Outside kernels", _overhead(report.overhead)
    yield PLAIN, "Peak memory", _memory(report)
    if report.compiled_vs_eager:
        yield _mark(report.compiled_vs_eager.within), "Compiled - eager", _worst(report.compiled_vs_eager)
    if report.parity:
        yield _mark(report.parity.within), "MuJoCo C parity", _parity(report.parity)
    if report.blocks:
        yield from _block_rows(report.blocks)


def _block_rows(found: Blocks) -> Iterable[tuple[str, str, str]]:
    """The lines on `mujoco_torch.compile(step)`."""
    yield PLAIN, "mujoco_torch.compile", _block_sizes(found)
    if found.life:
        yield _mark(not found.recompilations), "  Recompilations", _life(found.recompilations, found.life)
    if found.guards is not None:
        yield _mark(not found.guards), "  Guards", f"{found.guards} in all pieces (budget 0)"
    if found.compile_seconds is not None:
        cpu, probe = found.compile_cpu_seconds or 0.0, found.toolchain_probe
        text = f"{found.compile_seconds:.1f} s, {cpu:.1f} CPU-seconds; tool-chain probe {probe:.1f} s apart"
        yield PLAIN, "  Compile time", text
    if found.steps_per_second:
        yield PLAIN, "  Speed", f"{found.steps_per_second:,.0f} steps/s"
    if found.overhead:
        text = _overhead(found.overhead)
        if found.batch_overhead and found.batch_overhead.microseconds is not None:
            text += f" of one block; {found.batch_overhead.microseconds:.0f} us with the whole batch"
        yield _overhead_mark(found.overhead), "  Outside pieces", text
    if found.compiled_vs_eager:
        yield _mark(found.compiled_vs_eager.within), "  Blocks - eager", _worst(found.compiled_vs_eager)
    for note in found.notes:
        yield PLAIN, "  Note", one_line(note)


def _block_sizes(found: Blocks) -> str:
    pieces = f"{len(found.pieces)} pieces ({', '.join(found.pieces)})" if found.pieces else "no pieces"
    return f"{found.count} blocks of {found.block} worlds, {pieces}"


def _mark(good: bool) -> str:
    return GOOD if good else BAD


def _life(recompilations: Sequence[Recompilation], life: Sequence[Call]) -> str:
    names = ", ".join(dict.fromkeys(call.name.rstrip(" 0123456789") for call in life))
    return f"{len(recompilations)} in {len(life)} calls ({names})"


def _guards(report: Report) -> str:
    latencies = [frame.latency_us for frame in report.guards.frames if frame.latency_us is not None]
    checked = f", checked in {max(latencies):.0f} us" if latencies else ""
    return f"{report.guards.worst} in the largest frame (budget {report.guards.budget}){checked}"


def _compile_time(seconds: CompileSeconds, first: Call) -> str:
    phases = {
        "Dynamo": seconds.dynamo,
        "AOTAutograd": seconds.aot_autograd,
        "Inductor": seconds.inductor,
        "code generation": seconds.code_gen,
        "C++ or Triton": seconds.cpp_or_triton,
    }
    text = ", ".join(f"{name} {value:.1f}" for name, value in phases.items())
    probe = f"tool-chain probe {seconds.toolchain_probe:.1f} s apart"
    return f"{seconds.total:.1f} s ({text}); {probe}; first call {first.cpu_seconds:.1f} CPU-seconds"


def _code(report: Report) -> str:
    code = report.code
    operations = "" if code.ir_nodes is None else f"{code.ir_nodes} operations, "
    return (
        f"{code.graph_nodes} graph nodes, {operations}{code.kernels} kernels, "
        f"{code.library_calls} library calls, {code.lines:,} lines"
    )


def _cuda_graphs(report: Report) -> str:
    graphs = report.cuda_graphs
    assert graphs
    if not graphs.applies:
        return f"do not apply: {graphs.reason}"
    created = next((line for line in graphs.partitions if line.startswith("Created")), "one partition")
    return f"{one_line(created, 200)}; {len(graphs.skips)} skipped"


def _overhead_mark(overhead: Overhead) -> str:
    spent = overhead.microseconds
    return PLAIN if spent is None else _mark(spent <= overhead.budget)


def _overhead(overhead: Overhead) -> str:
    spent = overhead.microseconds
    if spent is None:
        return overhead.method
    real = overhead.in_real_calls
    beside = "" if real is None else f"; {real:.0f} us with memory given back to the system"
    return f"{spent:.0f} us a call (budget {overhead.budget:.0f} us){beside}"


def _memory(report: Report) -> str:
    memory = report.memory
    parts = {"process with compiling": memory.process, "steps alone": memory.steady, "GPU": memory.device}
    return ", ".join(f"{name} {value / 2**20:,.0f} MiB" for name, value in parts.items() if value is not None)


def _worst(comparison: Comparison) -> str:
    if comparison.worst == 0.0:
        return "all fields equal"
    return f"{_number(comparison.worst)} ({comparison.worst_field}), tolerance {comparison.tolerance:.0e}"


def _parity(comparison: Comparison) -> str:
    errors = ", ".join(f"{name} {_number(error)}" for name, error in comparison.errors.items())
    return f"{errors} (one step, {comparison.worlds} worlds, relative; tolerance {comparison.tolerance:.0e})"


def _number(error: float | None) -> str:
    return "not a number" if error is None or error != error else f"{error:.1e}"


def _print_details(out: Console, report: Report) -> None:
    for broken in report.graph_breaks:
        out.print(f"\n[bold]Graph break[/bold] during the {broken.call}: {escape(broken.reason)}")
        for line in broken.user_stack:
            out.print(f"    {escape(line)}", highlight=False)
    for again in [*report.recompilations, *(report.blocks.recompilations if report.blocks else [])]:
        out.print(f"\n[bold]Recompilation[/bold] of {again.frame} by the {again.call}:")
        out.print(f"    {escape(again.reason)}", highlight=False)


def _print_findings(out: Console, report: Report) -> None:
    if not report.findings:
        out.print("\n[green]No findings.[/green]")
        return
    out.print(f"\n[bold red]{len(report.findings)} findings[/bold red]")
    for finding in report.findings:
        out.print(f"  [red]{finding.kind}[/red]  {escape(finding.message)}", soft_wrap=True)


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Prints one row per model, and one more per further finding."""
    table = Table()
    for name in ("Model", "Verdict", "Feature"):
        table.add_column(name, no_wrap=True)
    for name in ("What", "Next step"):
        table.add_column(name, min_width=24)
    for verdict in verdicts:
        for index, row in enumerate(_verdict_rows(verdict)):
            table.add_row(escape(verdict.model) if index == 0 else "", *row)
    console().print(table)


def _verdict_rows(verdict: Verdict) -> list[tuple[str, ...]]:
    if verdict.error:
        return [("[red]unreadable[/red]", "", escape(verdict.error), "")]
    if not verdict.findings:
        return [("[green]supported[/green]", "", "", "")]
    return [_finding_row(finding) for finding in verdict.findings]


def _finding_row(finding: mjt.Finding) -> tuple[str, ...]:
    named = ", ".join(finding.elements[:ELEMENTS_SHOWN])
    more = len(finding.elements) - ELEMENTS_SHOWN
    elements = f" ({named}{f' and {more} more' if more > 0 else ''})" if named else ""
    return ("[red]refused[/red]", finding.feature, escape(finding.message + elements), escape(finding.hint))


def print_environment(found: Environment) -> None:
    """Prints what `mjt info` found."""
    out = console()
    for title, rows in {
        "Versions": found.versions,
        "Machine": found.machine,
        "Devices": dict.fromkeys(found.devices, ""),
        "Usable": {c.name: f"{'yes' if c.usable else 'no'}: {c.detail}" for c in found.capabilities},
        "Settings": {name: f"{value}  ({SETTINGS[name]})" for name, value in found.settings.items()},
    }.items():
        _print_section(out, title, rows)


def _print_section(out: Console, title: str, rows: Mapping[str, object]) -> None:
    out.print(f"[bold]{title}[/bold]")
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(f"  {escape(name)}", escape("not installed" if value is None else str(value)))
    out.print(table if rows else "  none of those that matter is set")
