"""`mjt diagnose MODEL`: what the compiler makes of the step of a model."""

from __future__ import annotations

from typing import Annotated

import typer

from mjt_cli import render
from mjt_cli.choices import DEFAULT_FAIL_ON, DType, Mode, parse_device, parse_fail_on
from mjt_cli.collect.job import Job
from mjt_cli.collect.models import load_model, require_supported
from mjt_cli.collect.process import run_worker
from mjt_cli.findings import exit_code
from mjt_cli.progress import progress
from mjt_cli.report import FINDING_KINDS, to_json


def diagnose(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A path, or the name of a packaged model.")],
    mode: Annotated[Mode, typer.Option(help="Mode of torch.compile.")] = Mode.DEFAULT,
    batch: Annotated[int, typer.Option(min=1, help="Worlds simulated at once.")] = 1024,
    dtype: Annotated[DType, typer.Option(help="Floating point type.")] = DType.FLOAT64,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    steps: Annotated[
        int, typer.Option(min=1, help="Steps of the speed measurement, which ends after 20 s.")
    ] = 100,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads.  [default: torch's choice]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    warm: Annotated[
        bool, typer.Option("--warm", help="Use your compile caches instead of empty ones.")
    ] = False,
    no_blocks: Annotated[
        bool,
        typer.Option("--no-blocks", help="Leave out mujoco_torch.compile(step), which compiles once more."),
    ] = False,
    fail_on: Annotated[
        str,
        typer.Option(
            metavar="KIND,...", help=f"Findings that give exit status 1: {', '.join(FINDING_KINDS)}."
        ),
    ] = DEFAULT_FAIL_ON,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which the run is given up.")] = 900,
    backend: Annotated[str, typer.Option(hidden=True, help="Backend of torch.compile.")] = "inductor",
) -> None:
    """Compile the step of a model in a fresh process and report what the compiler did with it.

    Exit status: 0 clean, 1 findings, 2 bad use, 3 model not supported.
    """
    failing = parse_fail_on(fail_on)
    loaded_device = parse_device(device)
    loaded = load_model(model)
    require_supported(loaded)
    job = Job(
        path=str(loaded.path),
        name=loaded.name,
        mode=mode.value,
        backend=backend,
        device=loaded_device,
        dtype=dtype.value,
        batch=batch,
        steps=steps,
        threads=threads,
        caches="warm" if warm else "cold",
        blocks=not no_blocks,
    )
    with progress() as phase:
        report = run_worker(job, timeout=timeout, phase=phase)
    if as_json:
        typer.echo(to_json(report))
    else:
        render.print_report(report)
    raise typer.Exit(exit_code(report, failing))
