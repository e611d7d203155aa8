"""Which devices a test runs on: the CPU, and a GPU where there is one."""

import pytest
import torch

GPU = "cuda:0"
NEEDS_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
NEEDS_TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
DEVICES = ["cpu", pytest.param(GPU, marks=NEEDS_A_GPU)]
