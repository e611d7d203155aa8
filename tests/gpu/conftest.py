"""Puts this folder on the path."""

import sys
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parent)]


@pytest.fixture(autouse=True)
def exact_products() -> None:
    """TensorFloat-32 rounds more than the tests allow."""
    torch.set_float32_matmul_precision("highest")
