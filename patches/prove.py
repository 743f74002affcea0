"""Proves every patch on the torch and tensordict installed beside it; `nox -s patched-torch-tests` runs it.

Without a patch its tests must fail for the reason that the series states, with it they must pass; after it every file
must have the hash it had. Then all patches are applied together, and all tests run. A patch that the installed version
already has must leave the series.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path

from mjt_cli.patches.installed import State, diffs, examine
from mjt_cli.patches.series import Patch, Series, all_series
from mjt_cli.patches.target import Target, find_target

HERE = Path(__file__).parent
START = time.perf_counter()
PYTEST = (
    "-m",
    "pytest",
    str(HERE / "tests"),
    "-q",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore",
    "--show-capture=no",
)


def main() -> None:
    """Proves the patches named on the command line, or all; takes them off again whatever happens."""
    patches = fitting()
    before = hashes()
    try:
        prove_all(patches, sys.argv[1:] or [patch.name for patch in patches])
    finally:
        mjt("revert")
    assert hashes() == before, "files differ after the patches were reverted"
    told("proved")


def prove_all(patches: list[Patch], chosen: list[str]) -> None:
    """Proves the chosen patches one by one, then all patches together."""
    names = {patch.name for patch in patches}
    for patch in patches:
        if patch.name in chosen:
            prove(patch, [name for name in patch.needs if name in names])
    told("without patches")
    pytest("--patch", "none")
    told("all patches")
    mjt("apply")
    pytest()


def fitting() -> list[Patch]:
    """The patches that have a diff for what is installed; ends the run where one is merged or does not fit."""
    patches = []
    for series, target in installed():
        inside = examine(series, target)
        told(f"{target.distribution} {target.version}")
        for patch, _ in diffs(series, target):
            state = inside.state(patch)
            if state is not State.APPLICABLE:
                sys.exit(
                    f"{patch.name} is {state} in {target.distribution} {target.version}: revert or retire it"
                )
            patches.append(patch)
    return patches


def prove(patch: Patch, needs: list[str]) -> None:
    """Runs the tests of one patch without it and with it; `needs` are the patches under both."""
    before = hashes()
    told(f"{patch.name}: fails without")
    if needs:
        mjt("apply", *needs)
    pytest("--patch", patch.name, "--unpatched")
    told(f"{patch.name}: passes with")
    mjt("apply", patch.name)
    pytest("--patch", patch.name)
    mjt("revert")
    assert hashes() == before, f"{patch.name}: files differ after it was reverted"


def installed() -> list[tuple[Series, Target]]:
    """Every series with what it is for."""
    pairs = [(series, find_target(series.distribution, sys.path)) for series in all_series()]
    return [(series, target) for series, target in pairs if target is not None]


def hashes() -> dict[str, str]:
    """Hashes of all Python files of the distributions."""
    folders = [target.folder / target.distribution for _, target in installed()]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def mjt(*arguments: str) -> None:
    """Runs `mjt patches`, as a user would."""
    subprocess.run(
        [sys.executable, "-m", "mjt_cli", "patches", *arguments, "--json"], check=True, capture_output=True
    )


def pytest(*arguments: str) -> None:
    """Runs tests of the patches in a process that has not imported torch yet."""
    subprocess.run([sys.executable, *PYTEST, *arguments], check=True, timeout=600)


def told(text: str) -> None:
    """Says what comes next, and when."""
    print(f"[{time.perf_counter() - START:4.0f} s] {text}", flush=True)


if __name__ == "__main__":
    main()
