"""Makes the helpers of this folder importable, and disables TensorFloat-32."""

import sys
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parent)]


@pytest.fixture(autouse=True)
def exact_products() -> None:
    """Disable TensorFloat-32, which rounds more than the tests allow."""
    torch.set_float32_matmul_precision("highest")
