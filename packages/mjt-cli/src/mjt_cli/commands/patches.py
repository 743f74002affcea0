"""`mjt patches list|status|apply|revert`: fixes of PyTorch and tensordict for what is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from mjt_cli.errors import CliError, ExitCode
from mjt_cli.patches.installed import Installed, State, examine
from mjt_cli.patches.series import Patch, Series, all_series
from mjt_cli.patches.target import Target, find_target, search_path
from mjt_cli.patches.write import replace_files
from mjt_cli.render import console
from mjt_cli.report import SCHEMA_VERSION, dumps

Python = Annotated[str, typer.Option(metavar="PATH", help="Interpreter to look into.  [default: this one]")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="Patches; all without a name.")]

patches = typer.Typer(rich_markup_mode=None)


@patches.command("list")
def list_patches(as_json: AsJson = False) -> None:
    """List the patches that come with this version of mjt."""
    known = [(series, patch) for series in all_series() for patch in series.patches]
    if as_json:
        entries = [{"upstream": series.upstream, **patch.model_dump(mode="json")} for series, patch in known]
        typer.echo(dumps({"schema_version": SCHEMA_VERSION, "patches": entries}))
        return
    rows = [
        (series.upstream, patch.name, patch.status, _versions(patch), patch.title) for series, patch in known
    ]
    _print_table(("upstream", "patch", "status", "versions", "title"), rows)


@patches.command()
def status(python: Python = sys.executable, as_json: AsJson = False) -> None:
    """Show what each patch is to the installed versions: applied, applicable, merged, not-needed, conflict...

    Exit status: 0 clean, 1 a patch conflicts or a file was changed by something else, 3 a version is unknown.
    """
    found = look(python)
    _show(python, found, as_json)
    for inside in found:
        if isinstance(inside, Refused):
            raise inside.error
        if State.CONFLICT in _states(inside).values():
            raise typer.Exit(ExitCode.FINDINGS)


@patches.command()
def apply(names: Names = None, python: Python = sys.executable, as_json: AsJson = False) -> None:
    """Apply patches, all that fit the installed versions or those named; all or none."""
    _change(python, names or [], as_json, lambda applied, named: applied | named)


@patches.command()
def revert(names: Names = None, python: Python = sys.executable, as_json: AsJson = False) -> None:
    """Take patches off again, all or those named; all or none."""
    _change(python, names or [], as_json, lambda applied, named: applied - named)


@dataclass(frozen=True)
class Refused:
    """A series that cannot be used with what is installed, and why."""

    series: Series
    target: Target
    error: CliError


def look(python: str) -> list[Installed | Refused]:
    """Every series beside what the interpreter has installed; what it lacks is left out."""
    folders = search_path(python)
    targets = [(series, find_target(series.distribution, folders)) for series in all_series()]
    return [_look_at(series, target) for series, target in targets if target is not None]


def _look_at(series: Series, target: Target) -> Installed | Refused:
    try:
        return examine(series, target)
    except CliError as error:
        return Refused(series, target, error)


def _change(
    python: str,
    names: list[str],
    as_json: bool,
    choose: Callable[[frozenset[str], frozenset[str]], frozenset[str]],
) -> None:
    concerned = _concerned(look(python), names)
    named = _named(concerned, names)
    contents = {}
    for inside in concerned:
        files = inside.with_patches(choose(inside.applied, named))
        contents |= {inside.target.path(name): content for name, content in inside.changes(files).items()}
    replace_files(contents)
    _show(python, look(python), as_json)


def _concerned(found: Collection[Installed | Refused], names: list[str]) -> list[Installed]:
    """What the patches named belong to, without names everything; raises `CliError` where it is refused."""
    concerned = []
    for inside in found:
        if names and not any(patch.name in names for patch in inside.series.patches):
            continue
        if isinstance(inside, Refused):
            raise inside.error
        concerned.append(inside)
    return concerned


def _named(concerned: Collection[Installed], names: list[str]) -> frozenset[str]:
    """The patches meant by the arguments: without any, all that fit; raises `CliError` for one that does not."""
    states = {name: state for inside in concerned for name, state in _states(inside).items()}
    for name in names:
        if name not in states:
            known = ", ".join(patch.name for series in all_series() for patch in series.patches)
            raise CliError(f"{name}: no patch of anything installed; the patches are {known}")
        if not states[name].has_diff:
            raise CliError(f"{name}: {states[name]} with the installed version", ExitCode.NOT_SUPPORTED)
    return frozenset(names or [name for name, state in states.items() if state.has_diff])


def _states(inside: Installed) -> dict[str, State]:
    return {patch.name: inside.state(patch) for patch in inside.series.patches}


def _show(python: str, found: Collection[Installed | Refused], as_json: bool) -> None:
    entries = [_entry(inside) for inside in found]
    if as_json:
        typer.echo(dumps({"schema_version": SCHEMA_VERSION, "python": python, "distributions": entries}))
        return
    rows = [
        (entry["distribution"], entry["version"], patch["name"], patch["state"])
        for entry in entries
        for patch in entry["patches"]
    ]
    _print_table(("distribution", "version", "patch", "state"), rows)


def _entry(inside: Installed | Refused) -> dict[str, Any]:
    states = {} if isinstance(inside, Refused) else _states(inside)
    return {
        "distribution": inside.target.distribution,
        "version": str(inside.target.version),
        "folder": str(inside.target.folder),
        "error": inside.error.message if isinstance(inside, Refused) else None,
        "patches": [{"name": name, "state": state} for name, state in states.items()],
    }


def _versions(patch: Patch) -> str:
    return " | ".join(variant.versions for variant in patch.variants)


def _print_table(columns: Collection[str], rows: Collection[Collection[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column == "patch")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console().print(table)
