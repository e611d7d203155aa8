"""Linear layers of torchao in 8 bits: gradients of a pipeline are those of plain PyTorch wherever samples are apart.

torchao slows every import of transformers down, so it is not in the tests' environment.
A job of CI installs it for this file.
"""

import copy

import pytest
import torch
from torch import nn

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import capture
from graphpipe.planning.plan import plan
from graphpipe.run import Pipeline, PipelineOptions

float8 = pytest.importorskip("torchao.float8", reason="8-bit layers are tested with torchao: pip install torchao")


def blocks(recipe: str) -> nn.Module:
    """Return four blocks of two linear layers in 8 bits, by a recipe of torchao, whose rounding is emulated."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4)]
    config = float8.Float8LinearConfig.from_recipe_name(recipe)
    object.__setattr__(config, "emulate", True)  # torchao's recipes have no such argument
    return float8.convert_to_float8_training(nn.Sequential(*layers), config=config)


def differences(recipe: str, micro_batch: int) -> float:
    """Return the largest difference of a gradient from plain PyTorch's, relative to its norm, in two stages."""
    model = blocks(recipe)
    inputs, targets = torch.randn(16, 32), torch.randn(16, 32)
    plain = copy.deepcopy(model)
    nn.functional.mse_loss(plain(inputs), targets).backward()
    graph, cluster = capture(model, inputs), Cluster.preset("local:2")
    found = plan(graph, estimate(graph, cluster), cluster, batch_size=16, micro_batch=micro_batch)
    with Pipeline(found, model, nn.functional.mse_loss, None, options=PipelineOptions(device="cpu")) as pipeline:
        pipeline.step(inputs, targets)
    pairs = zip(_gradients(model), _gradients(plain), strict=True)
    return max(((ours - theirs).norm() / theirs.norm()).item() for ours, theirs in pairs)


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    found = [each.grad for each in model.parameters()]
    return [each for each in found if each is not None]


def test_a_factor_for_each_row_does_not_depend_on_the_micro_batch() -> None:
    """Such a layer was captured as if it read only the shape of its input, and all layers before it were dropped."""
    assert differences("rowwise", 4) < 1e-6


def test_a_factor_for_a_tensor_is_that_of_plain_pytorch_for_the_whole_mini_batch() -> None:
    assert differences("tensorwise", 16) == 0


def test_a_factor_for_a_tensor_is_refused_for_smaller_micro_batches() -> None:
    with pytest.raises(InvalidInput, match=r"mixes the samples of a batch \(max\)"):
        differences("tensorwise", 4)
