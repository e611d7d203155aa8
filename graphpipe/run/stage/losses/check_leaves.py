"""Checks that a loss trains nothing beside the model: such parameters would be in no optimizer."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node

from graphpipe.errors import InvalidInput

_REMEDY = (
    "Put the loss into the model: a last submodule that takes the targets as an input and returns the loss of each "
    "sample. Then loss_fn=lambda losses, _: losses.mean()."
)


def check_module(loss_fn: Callable[[Any, Any], Any]) -> None:
    """Check a loss function before the first step.

    Raises:
        InvalidInput: it is a module with trainable parameters.
    """
    named = loss_fn.named_parameters() if isinstance(loss_fn, nn.Module) else ()
    for name, parameter in named:
        if parameter.requires_grad:
            what = f"{type(loss_fn).__name__} has the trainable parameter '{name}', which a pipeline does not train"
            raise InvalidInput(what, where="loss_fn", remedy=_REMEDY)


def check_leaves(loss: Tensor, outputs: Sequence[Tensor], begins: Sequence[Node], trained: Collection[int]) -> None:
    """Check that a loss reaches no leaf that needs a gradient beside the model's outputs.

    Args:
        loss: of a micro-batch.
        outputs: of the model.
        begins: the operations that computed the outputs, before the loss was computed.
        trained: identities of parameters of the model that it may read.

    Raises:
        InvalidInput: it reaches one.
    """
    known = {*trained, *map(id, outputs)}
    seen: set[Node] = {*begins}
    stack = [] if loss.grad_fn is None else [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor) and id(leaf) not in known:
            what = f"its result depends on a trainable tensor{[*leaf.shape]} beside the outputs, which is not trained"
            raise InvalidInput(what, where="loss_fn", remedy=_REMEDY)
        stack += [each for each, _ in node.next_functions if each is not None]
