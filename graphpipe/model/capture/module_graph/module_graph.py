"""A module as a graph: calls of its submodules joined by glue operators, in order of execution."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from graphpipe.model.torch_private import TreeSpec, is_random

TRAINING = "training"
"""The target of a `get_attr` node that returns whether the stage is in training mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOutput:
    """What a model returns in evaluation, if its forward computes something else there than in training."""

    leaves: tuple[int, ...] | None
    """Positions in the leaves of the training's output. None: evaluation computes what training does not."""
    spec: TreeSpec
    """The containers of the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleGraph:
    """What a module computes.

    `graph` has placeholders (the model inputs), `get_attr` nodes (parameters, buffers, constants), `call_module` nodes
    (opaque submodules) and `call_function` nodes (glue, without side effects). `meta["owner"]` of a call or glue is the
    path of the submodule whose forward contains it, "" for the model itself. `meta["written_by"]` of a copy is the path
    of the submodule whose next call writes into it. `meta["writes"]` of a node is the buffer of the model's own that it
    writes into, after all nodes that read the buffer. `meta["dimensions"]` is the number of those of a tensor, and
    `meta["samples_in"]` those that grow with samples. `meta["changes"]` of a call is the model's parameters that it
    writes into. `meta["statistic"]` of a call is the operator in it that mixes samples. `meta["checks"]` is true for
    glue that only raises an error for some values, and that nothing reads.
    """

    graph: fx.Graph
    inputs: Mapping[str, fx.Node]
    """The placeholders, by name of the model input."""
    output_spec: TreeSpec
    """The containers of the model's output; their leaves are the arguments of the output node."""
    constants: Mapping[str, Tensor]
    """Tensors made in a forward, or plain attributes of a module, by target of their `get_attr` nodes."""
    in_evaluation: EvaluationOutput | None = None
    """None: the model computes the same in evaluation."""


def input_placeholder(graph: fx.Graph, name: str) -> fx.Node:
    """Return a placeholder for a model input, whose name may be a path such as `batch.image`."""
    node = graph.placeholder(name)
    if not name.isidentifier():
        node.target = node.name  # a module of the graph has it as a parameter
    return node


def sample_count(tensor: Tensor) -> int:
    """Return the number of samples of a tensor; replaces every use of the batch size in a module graph."""
    return tensor.shape[0]


def device_of(tensor: Tensor) -> torch.device:
    """Return the device of a tensor; replaces every device that a forward names."""
    return tensor.device


def stand_in(device: torch.device, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return a tensor for a call that reads only its shape, dtype and device; it takes the memory of one element."""
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def mode_dropout(tensor: Tensor, probability: float) -> Tensor:
    """Return a tensor with dropped elements; in a stage it follows the mode of the submodules around it."""
    return torch.nn.functional.dropout(tensor, probability, training=True)


def draws(target: object) -> bool:
    """True for a function or operator that draws random numbers."""
    return target is mode_dropout or is_random(target)
