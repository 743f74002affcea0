"""Runs the tests of patches on both sides: with `--unpatched`, each must fail for the reason that its series states.

`--patch NAME` runs the tests of one patch, and `--patch none` those that need no patch.
"""

from __future__ import annotations

import re
import tomllib
import traceback
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

UPSTREAMS = ("pytorch", "tensordict")


def failures() -> dict[str, str]:
    """The pattern that the failure of each patch's tests matches on released versions."""
    series = [
        tomllib.loads((Path(__file__).parents[1] / name / "series.toml").read_text()) for name in UPSTREAMS
    ]
    return {patch["name"]: patch.get("fails_with", "") for one in series for patch in one["patches"]}


FAILURES = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unpatched", action="store_true", help="the tests run on released versions")
    parser.addoption("--patch", metavar="NAME", help="run the tests of this patch alone")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "patch(name): fails without this patch and passes with it")
    config.stash[FAILURES] = failures()


def patch_of(item: pytest.Item) -> str:
    """The patch that a test is for, or none."""
    marker = item.get_closest_marker("patch")
    return marker.args[0] if marker else "none"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--patch")
    if wanted:
        items[:] = [item for item in items if patch_of(item) == wanted]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run without a single test that passed proves nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not reporter.stats.get("passed"):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    name = patch_of(pyfuncitem)
    if name == "none" or not pyfuncitem.config.getoption("--unpatched"):
        return (yield)
    expected = pyfuncitem.config.stash[FAILURES][name]
    try:
        yield
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        if re.search(expected, told):
            return True
        raise
    pytest.fail(f"passes without the patch {name}")


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    """No test finds or counts what another compiled; one thread, since two test runs may share the machine."""
    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
