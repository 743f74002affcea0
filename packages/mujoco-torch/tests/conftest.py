"""What all tests of the library share."""

import os

# Before torch is imported: the tests run several workers on few cores, and the operations are small.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch
import torch._dynamo

hypothesis.settings.register_profile("default", max_examples=40, derandomize=True, deadline=None)
hypothesis.settings.register_profile("many", max_examples=500, deadline=None)
hypothesis.settings.load_profile("default")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _many_models() -> None:
    """All tests of a worker compile the same functions, each for models of its own; dynamo gives up after eight."""
    torch._dynamo.config.recompile_limit = 256


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-models", action="store_true", help="compare the large models of other packages, too"
    )
