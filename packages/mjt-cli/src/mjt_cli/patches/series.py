"""The patches this distribution ships, as their `series.toml` files describe them."""

from __future__ import annotations

import tomllib
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from mjt_cli.errors import CliError

UPSTREAMS = ("pytorch", "tensordict")
PACKAGED = Path(__file__).parent / "data"
CHECKOUT = Path(__file__).parents[5] / "patches"


class Status(StrEnum):
    """Where a fix stands upstream; the last two have a reason instead of a patch."""

    OPEN = "open"
    MERGED = "merged"
    REJECTED = "rejected"
    NOT_NEEDED = "not-needed"
    NOT_POSSIBLE = "not-possible"


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is no range of versions (PEP 440)") from None
    return text


Specifier = Annotated[str, AfterValidator(_specifier)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Variant(_Table):
    """A diff and the versions whose context it fits."""

    versions: Specifier
    file: str


class Patch(_Table):
    """One fix.

    `cause` is the root cause in about three sentences, `link` the place upstream, `test` a file of patches/tests,
    `fails_with` a regular expression that the errors of its unpatched tests match; `needs` names patches that those
    tests need besides. `merged_in` is the range of versions that have the fix, `unaffected` that of older ones
    without the bug. `reason` says why there is no diff.
    """

    name: str
    title: str
    status: Status
    link: str
    cause: str
    test: str = ""
    fails_with: str = ""
    needs: tuple[str, ...] = ()
    merged_in: Specifier | None = None
    unaffected: Specifier | None = None
    reason: str = ""
    variants: tuple[Variant, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Patch:
        if self.status in (Status.NOT_NEEDED, Status.NOT_POSSIBLE):
            if self.variants or not self.reason:
                raise ValueError(f"{self.name}: status {self.status} takes a reason and no variants")
        elif not (self.variants and self.test and self.fails_with):
            raise ValueError(f"{self.name}: status {self.status} takes variants, a test and fails_with")
        return self

    def variant_for(self, version: Version) -> Variant | None:
        """The variant for a version, None where the version needs none."""
        fitting = (variant for variant in self.variants if version in SpecifierSet(variant.versions))
        return next(fitting, None)

    def is_merged_in(self, version: Version) -> bool:
        """Whether the version has the fix already."""
        return self.merged_in is not None and version in SpecifierSet(self.merged_in)

    def is_unaffected(self, version: Version) -> bool:
        """Whether the version does not have the bug yet."""
        return self.unaffected is not None and version in SpecifierSet(self.unaffected)


class Series(_Table):
    """The patches of one upstream, in the order in which they apply, and the versions they were tested with."""

    upstream: str
    distribution: str
    tested: tuple[str, ...]
    patches: tuple[Patch, ...]

    @property
    def folder(self) -> Path:
        """Where the diffs lie."""
        return root() / self.upstream

    def is_tested(self, version: Version) -> bool:
        """Whether the patches were tested with this version, whatever its build (`2.13.0+cpu` is 2.13.0)."""
        return version.public in self.tested


def root() -> Path:
    """Folder of the patches: of the installed distribution, or of the checkout it is installed from in place."""
    return PACKAGED if PACKAGED.is_dir() else CHECKOUT


def read_series(path: Path) -> Series:
    """Reads one `series.toml`; raises `CliError` naming the file where it is not right."""
    try:
        return Series.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise CliError(f"{path}: {error}") from None


@cache
def all_series() -> tuple[Series, ...]:
    """Every series that is shipped."""
    return tuple(read_series(root() / upstream / "series.toml") for upstream in UPSTREAMS)
