"""`mjt check MODEL...`: what of each model is not simulated exactly."""

from __future__ import annotations

from typing import Annotated

import typer

import mujoco_torch as mjt
from mjt_cli import render
from mjt_cli.collect.models import load_model
from mjt_cli.commands.verdict import Verdict, exit_code
from mjt_cli.errors import CliError
from mjt_cli.report import SCHEMA_VERSION, dumps


def check(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Paths, or names of packaged models.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List what of each model is not simulated exactly.

    Exit status: 0 all supported, 2 a file cannot be read, 3 a model is refused.
    """
    verdicts = [judge(model) for model in models]
    for verdict in verdicts:
        if verdict.error:
            typer.echo(f"mjt: {verdict.error}", err=True)
    if as_json:
        entries = [verdict.as_json() for verdict in verdicts]
        typer.echo(dumps({"schema_version": SCHEMA_VERSION, "models": entries}))
    else:
        render.print_verdicts(verdicts)
    raise typer.Exit(exit_code(verdicts))


def judge(model: str) -> Verdict:
    """Loads and checks one model."""
    try:
        loaded = load_model(model)
    except CliError as error:
        return Verdict(model, None, error=error.message)
    return Verdict(model, str(loaded.path), mjt.check(loaded.mjm))
