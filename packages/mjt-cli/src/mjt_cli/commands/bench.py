"""`mjt bench MODEL`: how fast the steps of a model are, beside MuJoCo C."""

from __future__ import annotations

from typing import Annotated

import typer

from mjt_cli import render_bench
from mjt_cli.choices import DType, Mode, parse_device
from mjt_cli.collect.job import BenchJob
from mjt_cli.collect.models import load_model, require_supported
from mjt_cli.collect.process import run_bench
from mjt_cli.errors import CliError, ExitCode
from mjt_cli.progress import progress
from mjt_cli.report import to_json


def bench(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A path, or the name of a packaged model.")],
    batch: Annotated[int, typer.Option(min=1, help="Worlds simulated at once.")] = 4096,
    dtype: Annotated[DType, typer.Option(help="Floating point type; MuJoCo C has float64.")] = DType.FLOAT64,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads, also of MuJoCo C.  [default: torch's choice]")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of one measurement.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each, in turns.")] = 5,
    mode: Annotated[Mode, typer.Option(help="Mode of torch.compile.")] = Mode.DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    warm: Annotated[
        bool, typer.Option("--warm", help="Use your compile caches instead of empty ones.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which the run is given up.")] = 1800,
) -> None:
    """Measure the steps of a model in a fresh process, in turns with MuJoCo C.

    Exit status: 0 measured, 1 the run failed, 2 bad use, 3 model not supported.
    """
    loaded_device = parse_device(device)
    loaded = load_model(model)
    require_supported(loaded)
    job = BenchJob(
        path=str(loaded.path),
        name=loaded.name,
        mode=mode.value,
        device=loaded_device,
        dtype=dtype.value,
        batch=batch,
        steps=steps,
        rounds=rounds,
        threads=threads,
        caches="warm" if warm else "cold",
    )
    with progress() as phase:
        report = run_bench(job, timeout=timeout, phase=phase)
    if as_json:
        typer.echo(to_json(report))
    else:
        render_bench.print_bench(report)
    if report.error:
        raise CliError(report.error, ExitCode.FINDINGS)
