"""Deep learning recommendation model: branches of dense layers and embedding bags, joined by concatenation.

    dense0  -> tower0: dense layer x layers -+
    ...                                     -+-> concat -> top: dense layer x top_layers, linear
    sparse0 -> bag0: embedding bag          -+
    ...                                     -+

GraphPipe (Jeon et al., ASPLOS 2025), appendix A.2: 7 dense branches of 4 layers of 4096; 7 embedding bags of 1M rows,
dimension 64, 100 look-ups; concatenated; top layers of 4096. Chosen by us, because the paper does not say: dense inputs
of 4096, bags that average, 4 top layers, one click logit.
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
class DlrmShape:
    """Sizes of the recommendation model."""

    dense_branches: int = 7
    sparse_branches: int = 7
    layers: int = 4
    top_layers: int = 4
    width: int = 4096
    rows: int = 1_000_000
    dimension: int = 64
    bag: int = 100


PAPER = DlrmShape()
SMALL = DlrmShape(dense_branches=3, sparse_branches=3, layers=2, top_layers=2, width=64, rows=1000, dimension=16, bag=8)


def build(shape: DlrmShape, device: str) -> ZooModel:
    """Return the model; dense inputs are (n, width) float32, sparse ones (n, bag) int64, the output (n, 1)."""
    dense, sparse = range(shape.dense_branches), range(shape.sparse_branches)
    feeds = {f"tower{index}": [f"dense{index}"] for index in dense}
    feeds |= {f"bag{index}": [f"sparse{index}"] for index in sparse}
    joined_width = shape.dense_branches * shape.width + shape.sparse_branches * shape.dimension
    with torch.device(device):
        modules: dict[str, nn.Module] = {
            f"tower{index}": dense_stack(shape.width, shape.width, shape.layers) for index in dense
        }
        modules |= {f"bag{index}": nn.EmbeddingBag(shape.rows, shape.dimension, mode="mean") for index in sparse}
        top = dense_stack(joined_width, shape.width, shape.top_layers)
        modules |= {"concat": Concat(), "top": chain({"layers": top, "click": nn.Linear(shape.width, 1)})}
    module = DagModule(modules, inputs=feeds | {"concat": list(feeds), "top": ["concat"]}, name="dlrm")
    return assemble(module, functional.binary_cross_entropy_with_logits, partial(_clicks, shape), device)


def _clicks(shape: DlrmShape, generator: Generator, samples: int) -> Batch:
    # A click increases every dense input, and its rows are in the upper half of each table.
    clicks = torch.randint(2, (samples, 1), generator=generator)
    inputs = {
        f"dense{index}": torch.randn(samples, shape.width, generator=generator) + 0.5 * clicks
        for index in range(shape.dense_branches)
    }
    half = shape.rows // 2
    inputs |= {
        f"sparse{index}": torch.randint(half, (samples, shape.bag), generator=generator) + half * clicks
        for index in range(shape.sparse_branches)
    }
    return inputs, clicks.float()
