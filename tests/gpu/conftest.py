"""Puts the benchmarks, and what ranks run in the tests of `run`, on the path."""

import sys
from pathlib import Path

import pytest
import torch

# As in the tests of `run`: kernels sum in another order with another number of threads.
torch.set_num_threads(1)
TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "run"), str(Path(__file__).parent)]


@pytest.fixture(autouse=True)
def exact_products() -> None:
    """TensorFloat-32 rounds more than the tests allow."""
    torch.set_float32_matmul_precision("highest")
