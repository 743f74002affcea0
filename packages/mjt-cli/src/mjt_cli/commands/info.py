"""`mjt info`: versions, devices, compilers, settings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mjt_cli import render
from mjt_cli.collect.environment import environment
from mjt_cli.report import SCHEMA_VERSION, dumps


def info(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print versions, devices, compilers and what of them the library can use."""
    found = environment()
    if as_json:
        typer.echo(dumps({"schema_version": SCHEMA_VERSION, **asdict(found)}))
    else:
        render.print_environment(found)
