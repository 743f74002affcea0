"""Applies diffs to files held in memory, through GNU patch: every hunk fits exactly or nothing changes."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from mjt_cli.errors import CliError

STRICT = ("-p1", "--forward", "--fuzz=0", "--silent", "--no-backup-if-mismatch", "--reject-file=-")
NEW_NAME = re.compile(r"^\+\+\+ b/(\S+)", re.MULTILINE)


@cache
def touched_files(diff: Path) -> tuple[str, ...]:
    """Names of the files a diff changes."""
    try:
        return tuple(NEW_NAME.findall(diff.read_text(encoding="utf-8")))
    except OSError as error:
        raise CliError(f"{diff}: {error.strerror}") from None


def run_patch(files: dict[str, bytes], diff: Path, *, reverse: bool = False) -> dict[str, bytes] | None:
    """The files with the diff applied, or None where it does not fit or changes nothing.

    Lines may have moved, but every line of context must be there (`--fuzz=0`).
    """
    touched = touched_files(diff)
    with tempfile.TemporaryDirectory() as folder:
        for name in touched:
            copy = Path(folder, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(files[name])
        if not _succeeds(
            [_patch_program(), *STRICT, *["--reverse"] * reverse, "-d", folder, "-i", str(diff)]
        ):
            return None
        changed = {name: Path(folder, name).read_bytes() for name in touched}
    return files | changed if all(changed[name] != files[name] for name in touched) else None


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0


@cache
def _patch_program() -> str:
    program = shutil.which("patch")
    if program is None:
        raise CliError("the program `patch` is not on the path; install GNU patch (apt install patch)")
    return program
