"""Runs the tests of patches on both sides: with `--unpatched`, each must fail for the reason that its series states."""

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unpatched", action="store_true", help="the tests run on released versions")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "patch(name): fails without this patch and passes with it")
    config.stash[FAILURES] = failures()


FAILURES = pytest.StashKey[dict[str, str]]()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    marker = pyfuncitem.get_closest_marker("patch")
    if marker is None or not pyfuncitem.config.getoption("--unpatched"):
        return (yield)
    (name,) = marker.args
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
    """No test finds what another compiled; one thread, since two test runs may share the machine."""
    torch.set_num_threads(1)
    torch._dynamo.reset()
