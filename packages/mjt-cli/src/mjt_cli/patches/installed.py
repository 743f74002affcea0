"""One series beside one installed distribution: what is applied, what can be, and the files of any other choice.

The state is read from the files alone. Taking the applied patches off must give the files of the wheel, hash by hash,
and every change starts again from those. So no order of commands leads to files that nobody has tested.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mjt_cli.errors import CliError, ExitCode
from mjt_cli.patches.hunks import run_patch, touched_files
from mjt_cli.patches.series import Patch, Series, Status
from mjt_cli.patches.target import Target

Files = dict[str, bytes]


class State(StrEnum):
    """What a patch is to an installed distribution."""

    APPLIED = "applied"
    APPLICABLE = "applicable"
    MERGED = "merged"
    NOT_NEEDED = "not-needed"
    NOT_POSSIBLE = "not-possible"
    CONFLICT = "conflict"

    @property
    def has_diff(self) -> bool:
        """Whether there is anything to apply or revert."""
        return self in (State.APPLIED, State.APPLICABLE, State.CONFLICT)


@dataclass(frozen=True)
class Installed:
    """The files that a series touches, as they are and as the wheel had them, and the patches now applied."""

    series: Series
    target: Target
    now: Files
    pristine: Files
    applied: frozenset[str]

    def state(self, patch: Patch) -> State:
        """What the patch is to this distribution."""
        diff = diff_for(self.series, patch, self.target)
        if diff is None:
            return _state_without_diff(patch, self.target)
        if patch.name in self.applied:
            return State.APPLIED
        if run_patch(self.pristine, diff, reverse=True) is not None:
            return State.MERGED
        return State.CONFLICT if run_patch(self.pristine, diff) is None else State.APPLICABLE

    def with_patches(self, names: Collection[str]) -> Files:
        """The files with exactly these patches; raises `CliError` where one does not fit."""
        files = self.pristine
        for patch, diff in diffs(self.series, self.target):
            if patch.name not in names:
                continue
            patched = run_patch(files, diff)
            if patched is None:
                raise CliError(
                    f"{patch.name}: {diff.name} does not fit {_told(self.target)}; nothing was changed",
                    ExitCode.FINDINGS,
                )
            files = patched
        return files

    def changes(self, files: Files) -> Files:
        """Those of the files that differ from what is installed."""
        return {name: content for name, content in files.items() if content != self.now[name]}


def _state_without_diff(patch: Patch, target: Target) -> State:
    if patch.is_merged_in(target.version):
        return State.MERGED
    return State.NOT_POSSIBLE if patch.status is Status.NOT_POSSIBLE else State.NOT_NEEDED


def diff_for(series: Series, patch: Patch, target: Target) -> Path | None:
    """The diff of a patch for the installed version, None where it needs none."""
    variant = patch.variant_for(target.version)
    return None if variant is None else series.folder / variant.file


def diffs(series: Series, target: Target) -> list[tuple[Patch, Path]]:
    """The patches that have a diff for the installed version, in order."""
    pairs = [(patch, diff_for(series, patch, target)) for patch in series.patches]
    return [(patch, diff) for patch, diff in pairs if diff is not None]


def examine(series: Series, target: Target) -> Installed:
    """Reads what is installed; raises `CliError` for an untested version and for files changed by something else."""
    if not series.is_tested(target.version):
        tested = ", ".join(series.tested)
        raise CliError(f"{_told(target)}: unknown version; patches are for {tested}", ExitCode.NOT_SUPPORTED)
    pairs = diffs(series, target)
    now = {name: target.read(name) for _, diff in pairs for name in touched_files(diff)}
    files, applied = now, set()
    for patch, diff in reversed(pairs):
        if all(target.is_pristine(name, files[name]) for name in touched_files(diff)):
            continue
        without = run_patch(files, diff, reverse=True)
        if without is not None:
            files = without
            applied.add(patch.name)
    foreign = sorted(name for name, content in files.items() if not target.is_pristine(name, content))
    if foreign:
        raise CliError(
            f"{_told(target)}: changed by something other than these patches, or installed without hashes: "
            f"{', '.join(foreign)}; reinstall it with pip",
            ExitCode.FINDINGS,
        )
    return Installed(series, target, now, files, frozenset(applied))


def _told(target: Target) -> str:
    return f"{target.distribution} {target.version}"
