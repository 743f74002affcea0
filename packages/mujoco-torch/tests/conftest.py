"""What all tests of the library share."""

import os

# Before torch is imported: the tests run several workers on few cores, and the operations are small.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)
