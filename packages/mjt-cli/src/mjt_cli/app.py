"""The `mjt` command: its subcommands, and how errors leave it (one line on stderr, an exit status)."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mjt_cli import __version__
from mjt_cli.commands.bench import bench
from mjt_cli.commands.check import check
from mjt_cli.commands.diagnose import diagnose
from mjt_cli.commands.info import info
from mjt_cli.commands.patches import patches
from mjt_cli.errors import CliError, ExitCode, one_line


class OneLineGroup(TyperGroup):
    """Prints every usage error and every `CliError` as one line on stderr."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Runs the command; in standalone mode ends the process with its exit code."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        sys.exit(self._guarded(*args, **extra))

    def _guarded(self, *args: Any, **extra: Any) -> int:
        try:
            return int(super().main(*args, standalone_mode=False, **extra) or ExitCode.CLEAN)
        except CliError as error:
            return _complain(error.message, error.code)
        except typer.Abort:
            return ExitCode.INTERRUPTED
        except Exception as error:
            # The usage errors of click, which newer typer versions carry under a private name.
            message = getattr(error, "format_message", None)
            if message is None:
                raise
            return _complain(one_line(message()), ExitCode.BAD_USE)


def _complain(message: str, code: ExitCode) -> ExitCode:
    typer.echo(f"mjt: {message}", err=True)
    return code


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mjt {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=OneLineGroup,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What the PyTorch compiler makes of a MuJoCo model."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(ExitCode.BAD_USE)


app.command()(diagnose)
app.command()(bench)
app.command()(check)
app.command()(info)
app.add_typer(patches, name="patches", help="Fixes of PyTorch and tensordict for the installed versions.")


def main() -> None:
    """Entry point of the `mjt` script."""
    app(prog_name="mjt")
