"""Replaces several files, all or none."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from mjt_cli.errors import CliError, ExitCode


def replace_files(contents: dict[Path, bytes]) -> None:
    """Writes all files, or leaves every one as it was and raises `CliError`.

    Files are replaced, not overwritten: a hard link into the cache of an installer keeps the content it had.
    """
    for path in contents:
        if not path.stat().st_mode & stat.S_IWUSR or not os.access(path, os.W_OK):
            raise _refusal(path, "the file is read-only")
    originals = {path: path.read_bytes() for path in contents}
    prepared: dict[Path, Path] = {}
    replaced: list[Path] = []
    path = Path()
    try:
        for path, content in contents.items():
            prepared[path] = _write_beside(path, content)
        for path, new in prepared.items():
            os.replace(new, path)
            replaced.append(path)
    except BaseException as error:
        for done in replaced:
            os.replace(_write_beside(done, originals[done]), done)
        if isinstance(error, OSError):
            raise _refusal(path, error.strerror or str(error)) from None
        raise
    finally:
        for new in prepared.values():
            with contextlib.suppress(OSError):
                new.unlink()


def _write_beside(path: Path, content: bytes) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        shutil.copymode(path, name)
    except BaseException:
        os.unlink(name)
        raise
    return Path(name)


def _refusal(path: Path, why: str) -> CliError:
    return CliError(f"{path}: {why}; nothing was changed", ExitCode.FINDINGS)
