"""Finds the distributions of another interpreter, and tells which of their files are as the wheel had them."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from mjt_cli.errors import CliError

SEARCH_PATH = "import json, sys; print(json.dumps([folder for folder in sys.path if folder]))"


@dataclass(frozen=True)
class Target:
    """An installed distribution: where its files lie and the hashes they had in the wheel."""

    distribution: str
    version: Version
    folder: Path
    hashes: dict[str, str]

    def path(self, name: str) -> Path:
        """Where a file of the wheel lies."""
        return self.folder / name

    def read(self, name: str) -> bytes:
        """The installed file; raises `CliError` where the wheel has none of that name."""
        try:
            return self.path(name).read_bytes()
        except OSError as error:
            raise CliError(f"{self.path(name)}: {error.strerror}") from None

    def is_pristine(self, name: str, content: bytes) -> bool:
        """Whether the content is what the wheel had under this name."""
        return self.hashes.get(name) == record_hash(content)


def record_hash(content: bytes) -> str:
    """The hash as a wheel's RECORD writes it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return "sha256=" + digest.rstrip(b"=").decode("ascii")


def search_path(python: str) -> list[str]:
    """`sys.path` of an interpreter; imports nothing there."""
    try:
        done = subprocess.run(
            [python, "-c", SEARCH_PATH], capture_output=True, text=True, timeout=60, check=True
        )
        return json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise CliError(f"--python {python}: cannot run it: {error}") from None


def find_target(distribution: str, folders: list[str]) -> Target | None:
    """The first distribution of that name on a search path, None where there is none."""
    found = next(iter(metadata.distributions(name=distribution, path=folders)), None)
    if found is None:
        return None
    record = csv.reader((found.read_text("RECORD") or "").splitlines())
    hashes = {row[0]: row[1] for row in record if len(row) > 1}
    return Target(distribution, Version(found.version), Path(str(found.locate_file(""))), hashes)
