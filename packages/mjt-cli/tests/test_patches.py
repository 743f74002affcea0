"""`mjt patches` on distributions made up for the tests: nothing installed is ever changed here."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import shutil
import stat
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

from mjt_cli.errors import CliError
from mjt_cli.patches import series as series_module
from mjt_cli.patches import write
from mjt_cli.patches.hunks import run_patch, touched_files
from mjt_cli.patches.installed import State, diffs, examine
from mjt_cli.patches.series import Patch, Series, all_series, read_series
from mjt_cli.patches.target import find_target, record_hash, search_path

POEM = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n"

SERIES = """
upstream = "{upstream}"
distribution = "{distribution}"
tested = ["1.2.0", "1.4.0"]

[[patches]]
name = "second-line"
title = "Another second line"
status = "open"
link = "https://example.invalid/1"
cause = "It was two."
test = "test_x.py"
fails_with = "two"
variants = [{{ versions = ">=1.2,<1.5", file = "1.patch" }}]

[[patches]]
name = "ninth-line"
title = "Another ninth line, and another file"
status = "merged"
merged_in = ">=1.4"
link = "https://example.invalid/2"
cause = "It was nine."
test = "test_x.py"
fails_with = "nine"
variants = [{{ versions = ">=1.2,<1.4", file = "2.patch" }}]

[[patches]]
name = "wish"
title = "A wish"
status = "not-possible"
link = "https://example.invalid/3"
cause = "Wishing."
reason = "It is one."
"""

SECOND_LINE = """--- a/poem/a.py
+++ b/poem/a.py
@@ -1,4 +1,4 @@
 one
-two
+TWO
 three
 four
"""

NINTH_LINE = """--- a/poem/a.py
+++ b/poem/a.py
@@ -7,4 +7,4 @@
 seven
 eight
-nine
+NINE
 ten
--- a/poem/b.py
+++ b/poem/b.py
@@ -1,3 +1,4 @@
+zero
 one
 two
 three
"""


FIFTH_LINE = """--- a/poem/a.py
+++ b/poem/a.py
@@ -2,7 +2,7 @@
 two
 three
 four
-five
+FIVE
 six
 seven
 eight
"""


class Site:
    """A folder with one distribution of two files, as pip installs it, before this interpreter's own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.install("1.2.0")

    def install(self, version: str, text: str = POEM) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        info = self.folder / f"poem-{version}.dist-info"
        (self.folder / "poem").mkdir(parents=True)
        info.mkdir()
        lines = []
        for name in ("poem/a.py", "poem/b.py"):
            (self.folder / name).write_text(text)
            lines.append(f"{name},{record_hash(text.encode())},{len(text)}")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: poem\nVersion: {version}\n")
        (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/RECORD,,"]) + "\n")

    def read(self, name: str = "a") -> str:
        return (self.folder / "poem" / f"{name}.py").read_text()

    @property
    def hashes(self) -> dict[str, str]:
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a series for the distribution `poem`; that for `absent` has nothing to be applied to."""
    root = tmp_path / "patches"
    for upstream, distribution in (("poems", "poem"), ("absents", "absent")):
        folder = root / upstream
        folder.mkdir(parents=True)
        (folder / "series.toml").write_text(SERIES.format(upstream=upstream, distribution=distribution))
        (folder / "1.patch").write_text(SECOND_LINE)
        (folder / "2.patch").write_text(NINTH_LINE)
    monkeypatch.setattr(series_module, "UPSTREAMS", ("poems", "absents"))
    monkeypatch.setattr(series_module, "root", lambda: root)
    all_series.cache_clear()
    touched_files.cache_clear()
    yield root / "poems"
    all_series.cache_clear()
    touched_files.cache_clear()


@pytest.fixture
def site(tmp_path: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "site"
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return Site(folder)


def states(result) -> dict[str, str]:
    (distribution,) = json.loads(result.stdout)["distributions"]
    return {patch["name"]: patch["state"] for patch in distribution["patches"]}


def one_line_of(result) -> str:
    assert result.stderr.startswith("mjt: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_list(mjt, shipped: Path):
    told = mjt("patches", "list")
    assert told.exit_code == 0
    for text in ("second-line", "not-possible", ">=1.2,<1.5", "A wish"):
        assert text in told.stdout
    patches = json.loads(mjt("patches", "list", "--json").stdout)["patches"]
    assert [patch["name"] for patch in patches] == 2 * ["second-line", "ninth-line", "wish"]
    assert patches[0]["upstream"] == "poems"


def test_apply_and_revert(mjt, site: Site):
    before = site.hashes
    assert states(mjt("patches", "status", "--json")) == {
        "second-line": "applicable",
        "ninth-line": "applicable",
        "wish": "not-possible",
    }
    applied = mjt("patches", "apply", "--json")
    assert applied.exit_code == 0
    assert states(applied) == {"second-line": "applied", "ninth-line": "applied", "wish": "not-possible"}
    assert "TWO" in site.read() and "NINE" in site.read() and site.read("b").startswith("zero")
    assert states(mjt("patches", "status", "--json")) == states(applied)
    assert "applied" in mjt("patches", "apply").stdout
    assert mjt("patches", "revert").exit_code == 0
    assert site.hashes == before


def test_single_patches_in_any_order(mjt, site: Site):
    before = site.hashes
    mjt("patches", "apply", "ninth-line")
    assert "NINE" in site.read() and "two" in site.read()
    mjt("patches", "apply", "second-line")
    mjt("patches", "revert", "ninth-line")
    assert site.read() == POEM.replace("two", "TWO")
    assert site.read("b") == POEM
    mjt("patches", "revert", "second-line")
    assert site.hashes == before


def test_permissions_are_kept(mjt, site: Site):
    path = site.folder / "poem" / "a.py"
    path.chmod(0o640)
    mjt("patches", "apply")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_hard_link_keeps_its_content(mjt, site: Site, tmp_path: Path):
    link = tmp_path / "cache.py"
    link.hardlink_to(site.folder / "poem" / "a.py")
    mjt("patches", "apply")
    assert link.read_text() == POEM


def test_merged_by_version(mjt, site: Site):
    site.install("1.4.0")
    assert states(mjt("patches", "status", "--json"))["ninth-line"] == "merged"
    refused = mjt("patches", "apply", "ninth-line")
    assert refused.exit_code == 3
    assert "ninth-line: merged" in one_line_of(refused)
    assert mjt("patches", "apply").exit_code == 0
    assert site.read() == POEM.replace("two", "TWO")


def test_merged_by_content(mjt, site: Site):
    """The wheel itself has the change: its reverse applies to pristine files."""
    site.install("1.2.0", POEM.replace("two", "TWO"))
    assert states(mjt("patches", "status", "--json"))["second-line"] == "merged"


@pytest.mark.parametrize("command", ["apply", "revert", "status"])
def test_unknown_version(mjt, site: Site, command: str):
    site.install("1.3.0")
    before = site.hashes
    refused = mjt("patches", command)
    assert refused.exit_code == 3
    assert "poem 1.3.0: unknown version; patches are for 1.2.0, 1.4.0" in one_line_of(refused)
    assert site.hashes == before


def test_build_of_a_known_version(mjt, site: Site):
    site.install("1.2.0+cpu")
    assert mjt("patches", "apply").exit_code == 0
    assert "TWO" in site.read()


def test_broken_patch_changes_nothing(mjt, site: Site, shipped: Path):
    broken = NINTH_LINE.replace(" eight\n", " eight and a half\n")
    (shipped / "2.patch").write_text(broken)
    before = site.hashes
    refused = mjt("patches", "apply")
    assert refused.exit_code == 1
    assert "ninth-line: 2.patch does not fit poem 1.2.0; nothing was changed" in one_line_of(refused)
    assert site.hashes == before
    told = mjt("patches", "status", "--json")
    assert told.exit_code == 1
    assert states(told)["ninth-line"] == "conflict"


def test_context_must_fit_exactly(tmp_path: Path):
    """Lines may have moved; one that differs, which GNU patch would overlook with its usual fuzz, is refused."""
    diff = tmp_path / "a.patch"
    diff.write_text(FIFTH_LINE)
    moved = {"poem/a.py": b"zero\n" + POEM.encode()}
    patched = run_patch(moved, diff)
    assert patched == {"poem/a.py": b"zero\n" + POEM.replace("five", "FIVE").encode()}
    assert run_patch(patched, diff) is None
    assert run_patch(patched, diff, reverse=True) == moved
    assert run_patch({"poem/a.py": POEM.replace("two", "TWO").encode()}, diff) is None


def test_read_only_file(mjt, site: Site):
    (site.folder / "poem" / "b.py").chmod(0o444)
    before = site.hashes
    refused = mjt("patches", "apply")
    assert refused.exit_code == 1
    assert "b.py: the file is read-only; nothing was changed" in one_line_of(refused)
    assert site.hashes == before


@pytest.mark.parametrize("failing", ["_write_beside", "os.replace"])
def test_failure_half_way(mjt, site: Site, monkeypatch: pytest.MonkeyPatch, failing: str):
    before = site.hashes
    owner, name = (write, failing) if failing.startswith("_") else (write.os, "replace")
    original = getattr(owner, name)
    calls = iter(range(10))

    def second_fails(*arguments):
        if next(calls) == 1:
            raise OSError(28, "No space left on device")
        return original(*arguments)

    monkeypatch.setattr(owner, name, second_fails)
    refused = mjt("patches", "apply")
    monkeypatch.undo()
    assert refused.exit_code == 1
    assert "No space left on device; nothing was changed" in one_line_of(refused)
    assert site.hashes == before


def test_file_changed_by_something_else(mjt, site: Site):
    (site.folder / "poem" / "a.py").write_text(POEM + "eleven\n")
    before = site.hashes
    refused = mjt("patches", "apply")
    assert refused.exit_code == 1
    assert "changed by something other than these patches" in one_line_of(refused)
    assert "poem/a.py" in refused.stderr
    assert mjt("patches", "status").exit_code == 1
    assert site.hashes == before


def test_names(mjt, site: Site):
    unknown = mjt("patches", "apply", "tenth-line")
    assert unknown.exit_code == 2
    assert "the patches are second-line, ninth-line, wish" in one_line_of(unknown)
    assert mjt("patches", "apply", "wish").exit_code == 3


def test_interpreter_that_does_not_run(mjt, site: Site, tmp_path: Path):
    refused = mjt("patches", "status", "--python", tmp_path / "python")
    assert refused.exit_code == 2
    assert "cannot run it" in one_line_of(refused)


def test_no_subcommand(mjt):
    assert mjt("patches").exit_code == 2


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('">=1.2,<1.5"', '"1.2 or so"', "no range of versions"),
        ('status = "open"', 'status = "lost"', "status"),
        ('fails_with = "two"\n', "", "fails_with"),
        ('reason = "It is one."', "", "takes a reason"),
        ('title = "A wish"', 'titel = "A wish"', "titel"),
        ("[[patches]]", "[[patches", "series.toml"),
    ],
)
def test_wrong_series(tmp_path: Path, old: str, new: str, told: str):
    path = tmp_path / "series.toml"
    text = SERIES.format(upstream="poems", distribution="poem")
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(CliError, match=told):
        read_series(path)


REPOSITORY = Path(__file__).parents[3]
SHIPPED = [(series, patch) for series in all_series() for patch in series.patches]


def test_page_is_up_to_date():
    """docs/patches.md is what docs/generate_patches.py makes of the series now."""
    spec = importlib.util.spec_from_file_location(
        "generate_patches", REPOSITORY / "docs" / "generate_patches.py"
    )
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.PAGE.read_text() == generate.page()


def test_every_diff_is_listed_once():
    listed = sorted(
        f"{series.upstream}/{variant.file}" for series, patch in SHIPPED for variant in patch.variants
    )
    root = series_module.root()
    assert listed == sorted(str(path.relative_to(root)) for path in root.glob("*/*.patch"))


@pytest.mark.parametrize(("series", "patch"), SHIPPED, ids=[patch.name for _, patch in SHIPPED])
def test_shipped_patch(series: Series, patch: Patch):
    """DEP-3 header, Python files only, a test, and a variant for at most one range that holds each tested version."""
    for variant in patch.variants:
        text = (series.folder / variant.file).read_text()
        for field in ("From: ", "Subject: ", "Bug: ", "Forwarded: ", "Last-Update: "):
            assert f"\n{field}" in text
        assert all(name.endswith(".py") for name in touched_files(series.folder / variant.file))
    tests = REPOSITORY / "patches" / "tests"
    assert not patch.test or (tests / patch.test).is_file()
    names = {other.name for _, other in SHIPPED}
    assert set(patch.needs) <= names
    for version in map(Version, series.tested):
        has_no_bug = patch.is_merged_in(version) or patch.is_unaffected(version)
        assert bool(patch.variant_for(version)) != has_no_bug or not patch.variants


@pytest.mark.parametrize("series", all_series(), ids=lambda series: series.upstream)
def test_shipped_patches_fit_what_is_installed(series: Series):
    """On copies in memory: each alone and all together, and back to the hashes of the wheel."""
    target = find_target(series.distribution, search_path(sys.executable))
    if target is None or not series.is_tested(target.version):
        pytest.skip(f"needs {series.distribution} {' or '.join(series.tested)}")
    inside = examine(series, target)
    pairs = diffs(series, target)
    for patch, diff in pairs:
        assert inside.state(patch) in (State.APPLIED, State.APPLICABLE)
        alone = inside.with_patches([patch.name])
        assert run_patch(alone, diff, reverse=True) == inside.pristine
    files = inside.with_patches([patch.name for patch, _ in pairs])
    for _, diff in reversed(pairs):
        files = run_patch(files, diff, reverse=True)
        assert files is not None
    assert files == inside.pristine


def test_record_hash_is_that_of_pip():
    distribution = metadata.distribution("packaging")
    file = next(file for file in distribution.files or () if file.name == "version.py")
    content = Path(str(distribution.locate_file(file))).read_bytes()
    assert file.hash is not None
    assert record_hash(content) == f"sha256={file.hash.value}"
    assert base64.urlsafe_b64decode(file.hash.value + "=") == hashlib.sha256(content).digest()
