"""CANDLE-Uno: one branch of dense layers per kind of drug and cell feature, joined by concatenation.

    feature0 -> branch0: dense layer x layers -+
    ...                                       -+-> concat -> top: dense layer x top_layers, linear
    feature6 -> branch6: dense layer x layers -+

GraphPipe (Jeon et al., ASPLOS 2025), appendix A.2: 7 branches of 4 layers of 4096; concatenated; 2 layers of 4096; one
growth value. Chosen by us, because the paper does not say: every feature is 4096 wide.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Generator, nn
from torch.nn import functional

from graphpipe.model.dag_module import DagModule
from graphpipe.model.zoo.blocks import Concat, chain, dense_stack
from graphpipe.model.zoo.zoo_model import Batch, ZooModel, assemble


@dataclass(frozen=True, slots=True, kw_only=True)
class CandleUnoShape:
    """Sizes of CANDLE-Uno."""

    branches: int = 7
    layers: int = 4
    top_layers: int = 2
    width: int = 4096


PAPER = CandleUnoShape()
SMALL = CandleUnoShape(layers=2, width=64)


def build(shape: CandleUnoShape, device: str) -> ZooModel:
    """Return the model; each input is (n, width) float32, the output (n, 1)."""
    feeds = {f"branch{index}": [f"feature{index}"] for index in range(shape.branches)}
    with torch.device(device):
        modules: dict[str, nn.Module] = {name: dense_stack(shape.width, shape.width, shape.layers) for name in feeds}
        top = dense_stack(shape.branches * shape.width, shape.width, shape.top_layers)
        modules |= {"concat": Concat(), "top": chain({"layers": top, "growth": nn.Linear(shape.width, 1)})}
    module = DagModule(modules, inputs=feeds | {"concat": list(feeds), "top": ["concat"]}, name="candle-uno")
    return assemble(module, functional.mse_loss, partial(_growth, shape), device)


def _growth(shape: CandleUnoShape, generator: Generator, samples: int) -> Batch:
    # Every feature is the growth value plus noise.
    growth = torch.randn(samples, 1, generator=generator)
    inputs = {
        f"feature{index}": growth + torch.randn(samples, shape.width, generator=generator)
        for index in range(shape.branches)
    }
    return inputs, growth
