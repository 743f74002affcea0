"""The files at the root of the repository say what is true, and what they tell to run runs."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import mujoco_torch

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
PACKAGES = ("mujoco-torch", "mjt-cli")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")])


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def project(package):
    return tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]


def test_readme_has_two_commands_of_one_line():
    commands = blocks("bash")
    assert len(commands) == 2
    assert all(command.count("\n") == 1 for command in commands)


def test_ci_runs_the_test_command_of_the_readme():
    assert blocks("bash")[1].strip() in (ROOT / ".ci" / "run").read_text()


@pytest.mark.slow
def test_library_example_runs_as_written(tmp_path):
    (example,) = blocks("python")
    assert example.count("\n") == 15
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.match(r"t = \d+\.\d\d s, torso at \d+\.\d\d m, ", done.stdout), done.stdout


def test_both_distributions_have_one_version():
    library, command_line = map(project, PACKAGES)
    assert library["version"] == command_line["version"] == mujoco_torch.__version__
    assert f"mujoco-torch=={library['version']}" in command_line["dependencies"]
    assert f"## {library['version']} " in (ROOT / "CHANGELOG.md").read_text()


def test_pins_lie_in_the_ranges_of_the_packages():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.lower().split("==") for line in lines if "==" in line)
    for package in PACKAGES:
        table = project(package)
        for text in [*table["dependencies"], *table["optional-dependencies"]["test"]]:
            requirement = Requirement(text)
            if requirement.name not in PACKAGES:
                assert requirement.specifier.contains(pins[requirement.name.lower()]), text


def test_oldest_versions_are_the_lower_bounds():
    (oldest,) = re.findall(r"^OLDEST = \((.*)\)$", (ROOT / "noxfile.py").read_text(), flags=re.MULTILINE)
    versions = dict(text.split("==") for text in re.findall(r'"(\S+)"', oldest))
    for requirement in map(Requirement, project("mujoco-torch")["dependencies"]):
        if requirement.name in versions:
            assert f"{versions.pop(requirement.name)}.".startswith(f"{requirement.specifier}"[2:] + ".")
    assert not versions


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists() or (page.parent / f"{target}.md").exists(), target
