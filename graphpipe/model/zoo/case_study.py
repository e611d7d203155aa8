"""The two-branch model of GraphPipe's case study: per layer an attention block and two linear layers.

    modality0 -> branch0: (attention, linear0, linear1) x layers -+-> concat -> head
    modality1 -> branch1: (attention, linear0, linear1) x layers -+

GraphPipe (Jeon et al., ASPLOS 2025): 2 branches of 4 layers. Chosen by us, because the widths are not published:
sequence 256, hidden 1024 and 16 heads as in the multi-modal transformer, both linear layers of the hidden width with a
ReLU, and a head that averages over positions and classifies.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from graphpipe.model.dag_module import DagModule
from graphpipe.model.zoo.blocks import Attention, Concat, Dense, PooledHead, chain
from graphpipe.model.zoo.synthetic_tasks import classify_sequences
from graphpipe.model.zoo.zoo_model import ZooModel, assemble, multiple_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseStudyShape:
    """Sizes of the case study."""

    branches: int = 2
    layers: int = 4
    sequence: int = 256
    hidden: int = multiple_of("heads", 1024)
    heads: int = 16
    classes: int = 16


PAPER = CaseStudyShape()
SMALL = CaseStudyShape(layers=2, sequence=16, hidden=64, heads=4)


def build(shape: CaseStudyShape, device: str) -> ZooModel:
    """Return the model; each input is (n, sequence, hidden) float32, the output (n, classes)."""
    modalities = [f"modality{index}" for index in range(shape.branches)]
    branches = [f"branch{index}" for index in range(shape.branches)]
    with torch.device(device):
        modules = {
            branch: chain({f"layer{index}": _layer(shape) for index in range(shape.layers)}) for branch in branches
        }
        joined = {"concat": Concat(), "head": PooledHead(shape.branches * shape.hidden, shape.classes)}
    inputs = {branch: [modality] for branch, modality in zip(branches, modalities, strict=True)}
    module = DagModule(modules | joined, inputs=inputs | {"concat": branches, "head": ["concat"]}, name="case-study")
    task = classify_sequences(modalities, shape.classes, shape.sequence, shape.hidden)
    return assemble(module, functional.cross_entropy, task, device)


def _layer(shape: CaseStudyShape) -> nn.Sequential:
    return chain(
        {
            "attention": Attention(shape.hidden, shape.heads),
            "linear0": Dense(shape.hidden, shape.hidden),
            "linear1": Dense(shape.hidden, shape.hidden),
        }
    )
