"""Multi-modal transformer: one branch of transformer layers per modality, joined by concatenation.

    modality0 -> branch0: (attention, feed-forward) x layers -+
    modality1 -> branch1: ...                                -+-> concat -> head
    ...                                                      -+

GraphPipe (Jeon et al., ASPLOS 2025), appendix A.2: 4 branches of 8 layers, sequence 256, hidden 1024, 16 heads,
feed-forward 4096. This is the paper's text: the public code has feed-forward layers of the hidden width, without norm
and residual. Chosen by us, because the paper does not say: pre-norm layers, inputs already embedded, a head that
averages over positions and classifies.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

from graphpipe.model.dag_module import DagModule
from graphpipe.model.zoo.blocks import Concat, PooledHead, chain, transformer_layer
from graphpipe.model.zoo.synthetic_tasks import classify_sequences
from graphpipe.model.zoo.zoo_model import ZooModel, assemble, multiple_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MmtShape:
    """Sizes of the multi-modal transformer."""

    branches: int = 4
    layers: int = 8
    sequence: int = 256
    hidden: int = multiple_of("heads", 1024)
    heads: int = 16
    feed_forward: int = 4096
    classes: int = 16


PAPER = MmtShape()
SMALL = MmtShape(layers=2, sequence=16, hidden=64, heads=4, feed_forward=256)


def build(shape: MmtShape, device: str) -> ZooModel:
    """Return the model; each input is (n, sequence, hidden) float32, the output (n, classes)."""
    modalities = [f"modality{index}" for index in range(shape.branches)]
    branches = [f"branch{index}" for index in range(shape.branches)]
    with torch.device(device):
        modules = {
            branch: chain(
                {
                    f"layer{index}": transformer_layer(shape.hidden, shape.heads, shape.feed_forward)
                    for index in range(shape.layers)
                }
            )
            for branch in branches
        }
        joined = {"concat": Concat(), "head": PooledHead(shape.branches * shape.hidden, shape.classes)}
    inputs = {branch: [modality] for branch, modality in zip(branches, modalities, strict=True)}
    module = DagModule(modules | joined, inputs=inputs | {"concat": branches, "head": ["concat"]}, name="mmt")
    task = classify_sequences(modalities, shape.classes, shape.sequence, shape.hidden)
    return assemble(module, functional.cross_entropy, task, device)
