"""What is counted of operators whose products are narrow, and of what is computed of parameters alone."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import graphpipe as gp
from graphpipe.graph import Work


class Eight(nn.Module):
    """Products of 8-bit numbers, whose weight is rounded in each forward, and a narrower one of 32 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.randn(32, 64)), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        one = torch.ones(())
        with torch.no_grad():
            rounded = self.weight.to(torch.float8_e4m3fn)
            product: Any = torch._scaled_mm
            made = product(x.to(torch.float8_e4m3fn), rounded.t(), one, one, out_dtype=torch.float32)
        return self.out(made)


def work(module: nn.Module, dtype: torch.dtype = torch.float32, precision: Any = "fp32") -> Work:
    return gp.capture(nn.Sequential(module), torch.randn(4, 64, dtype=dtype), precision=precision).ops[0].work


def test_a_model_in_bf16_multiplies_in_bf16(tmp_path: Path) -> None:
    """Its products were taken for those of fp32, at a fifteenth of an H100's peak."""
    assert work(nn.Linear(64, 32)).products is None
    assert work(nn.Linear(64, 32), precision="bf16").products is None  # as the graph says of all its operators
    assert work(nn.Linear(64, 32).bfloat16(), torch.bfloat16).products == "bf16"
    graph = gp.capture(nn.Sequential(nn.Linear(64, 32).bfloat16()), torch.randn(4, 64, dtype=torch.bfloat16))
    cluster = gp.Cluster.preset("dgx-h100:1x1")
    assert gp.estimate(graph, cluster).rows[0].forward.lines[0][1] == 2 * 64 * 32 / 989e12
    graph.save(tmp_path / "graph.json")
    assert gp.Graph.load(tmp_path / "graph.json") == graph


def test_products_of_8_bit_numbers_are_told_apart() -> None:
    found = work(Eight())
    assert found.products == "fp8"
    assert found.flops_per_sample == 2 * 64 * 32 + 2 * 32 * 8


def test_what_is_computed_of_parameters_alone_counts_once_for_a_forward() -> None:
    """It counted for each sample: an 8-bit layer was estimated at six times its time."""
    found = work(Eight())
    # The weight is read in 4 bytes and written in one.
    assert found.traffic_bytes_per_forward == 64 * 32 * 5
    normed = work(weight_norm(nn.Linear(64, 32)))
    # Direction and norm are read, and the weight and the norm of the direction are written.
    assert normed.traffic_bytes_per_forward == 4 * (2 * 64 * 32 + 2 * 32)
    assert normed.saved_bytes_per_forward == 4 * 32
    assert normed.saved_bytes_per_sample == 0
    assert normed.traffic_bytes_per_sample == 4 * (64 + 32)


def test_statistics_that_a_layer_writes_are_no_results_of_parameters() -> None:
    assert work(nn.BatchNorm1d(64)).traffic_bytes_per_forward == 0
