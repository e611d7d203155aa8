"""Records the backward of a layer from zeros, and compares it once with the backward of a real forward."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from graphpipe.errors import InvalidInput
from graphpipe.model.halves.differing_operation import other_gradient, other_operation
from graphpipe.model.halves.recorded_backward import RecordedBackward, SavedInOrder, outputs_among
from graphpipe.model.halves.saved_layouts import saved_layouts
from graphpipe.model.saved_tensors import handle_saved_tensors
from graphpipe.plans.sharding import SampleRange
from graphpipe.run.rounds.layer_copy import LayerCopy, Received
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.micro_batch import Computed
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.receive_buffers import NamedTensors
from graphpipe.run.stage.stage_forward import StageForward

LOSS = ""
"""The name of the loss among the roots of a backward. Values have names that are not empty."""
_LATER = 2
"""A step in which nothing is checked that only first steps check."""
_REMEDY = "Train the plan itself, whose stages compute all gradients where their forward runs."


def record(layer: LayerCopy, batch: MiniBatch, loss_fn: LossFunction) -> None:
    """Record the backward of a layer, unless it was recorded in the present modes.

    Args:
        layer: whose forward is computed once with zeros in place of received values.
        batch: a mini-batch.
        loss_fn: of the pipeline.

    Raises:
        InvalidInput: the backward may need more than the tensors that its forward saves.
    """
    modes = layer.modes_now()
    if layer.recorded is not None and layer.modes == modes:
        return
    replica, rows = layer.replica, SampleRange(0, batch.micro_batches[layer.number])
    received = {
        edge: {
            spec.name: torch.zeros(
                (len(rows), *spec.sample_shape), dtype=spec.dtype, device=replica.device
            ).requires_grad_(spec.requires_grad)
            for spec in specs
        }
        for edge, specs in ((edge, batch.specs[edge]) for edge in replica.program.receives)
    }
    buffers = [(buffer, buffer.clone()) for buffer in replica.module.buffers()]
    later = replace(batch, key=(*batch.key[:-1], _LATER), check_finite=False)
    handler = SavedInOrder()
    with handle_saved_tensors(handler):
        computed = StageForward(replica, received, rows, later, loss_fn, 0, {}).compute()
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    recorded = RecordedBackward.of(roots_of(computed), by_edge(received), handler, replica.parameters)
    if reason := recorded.why_not():
        raise InvalidInput(
            f"its gradients cannot be computed on another device than its forward: {reason}",
            where=f"layer '{layer.name}'",
            remedy=_REMEDY,
        )
    layer.recorded, layer.modes = recorded, modes


def by_edge(received: Mapping[int, NamedTensors]) -> dict[Received, Tensor]:
    """Return received values by edge and name."""
    return {(edge, name): value for edge, values in received.items() for name, value in values.items()}


def roots_of(computed: Computed) -> dict[str, Tensor]:
    """Return the outputs and the loss that require a gradient, by name."""
    roots = {name: value for name, value in computed.outputs.items() if value.requires_grad}
    if computed.loss is not None and computed.loss.requires_grad:
        roots[LOSS] = computed.loss
    return roots


def kept_by(layer: LayerCopy, handler: SavedInOrder, roots: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """Return what the recorded backward will read of a real forward, by position.

    Args:
        layer: whose forward was computed.
        handler: has seen what it saved.
        roots: of the forward.

    Raises:
        InvalidInput: it has saved other tensors than the recorded forward, or has overwritten one.
    """
    assert layer.recorded is not None
    tensors = [each.tensor for each in handler.alive() if each.tensor is not None]
    same = saved_layouts(tensors, layer.parameters) == layer.recorded.layouts
    if not same or outputs_among(tensors, roots) != layer.recorded.outputs:
        raise other_backward(layer, _other_forward(layer.recorded, roots, len(tensors)))
    if handler.overwritten():
        what = "its forward overwrites a value that its backward reads"
        raise InvalidInput(what, where=f"layer '{layer.name}'", remedy="Leave out the operation in place.")
    return {at: tensors[at].detach() for at in layer.recorded.kept_reads}


def compare(
    layer: LayerCopy, roots: Mapping[str, Tensor], received: Mapping[Received, Tensor], kept: Mapping[int, Tensor]
) -> None:
    """Compare the recorded backward with that of a real forward, bit for bit, for gradients of ones.

    The module has other weights meanwhile, because another device may have newer ones.

    Raises:
        InvalidInput: they differ. Then something else than saved tensors is kept, such as a number or an input.
    """
    recorded, trained = layer.recorded, layer.trained
    assert recorded is not None
    ones = {name: torch.ones_like(root) for name, root in roots.items()}
    leaves = [received[name] for name in recorded.received]
    wanted = [*leaves, *trained]
    if not wanted or not roots:
        return

    def real() -> Sequence[Tensor | None]:
        return torch.autograd.grad([*roots.values()], wanted, [*ones.values()], retain_graph=True, allow_unused=True)

    expected = real()
    module, parameters = layer.replica.module, [parameter.data for parameter in layer.parameters]

    def brought() -> Sequence[Tensor | None]:
        with _other_values(module):
            found, carried = recorded.first_half(ones, kept, parameters)
            return *found.values(), *recorded.gradients_of(trained, carried, recorded.for_weights(kept, parameters))

    if not all(map(_equal, expected, brought())):
        edges = [get_gradient_edge(root) for root in roots.values()]
        name = other_gradient(edges, [recorded.roots[each] for each in roots], real, brought)
        raise other_backward(layer, name and f"{name} returns another gradient")


@contextmanager
def _other_values(module: nn.Module) -> Generator[None]:
    # Zeros in place of weights and buffers, so that what computes a region again computes something else.
    held = [(tensor, tensor.data) for tensor in (*module.parameters(), *module.buffers())]
    try:
        for tensor, memory in held:
            tensor.data = torch.zeros_like(memory)
        yield
    finally:
        for tensor, memory in held:
            tensor.data = memory


def _other_forward(recorded: RecordedBackward[Received], roots: Mapping[str, Tensor], count: int) -> str:
    if roots.keys() != recorded.roots.keys():
        return "other outputs have a gradient than in the first forward"
    edges = [get_gradient_edge(root) for root in roots.values()]
    if operation := other_operation([recorded.roots[name] for name in roots], edges):
        return f"{operation} in the first forward"
    return f"{count} tensors were saved, and {len(recorded.saved)} in the first forward, or others"


def other_backward(layer: LayerCopy, found: str = "") -> InvalidInput:
    """Return the error of a layer whose backward is not that which was recorded.

    Args:
        layer: whose backward it is.
        found: in what they differ; empty if it is not known.
    """
    return InvalidInput(
        "its backward depends on more than the tensors that its forward saves: a number that changes, a branch, or a "
        f"region that is computed again{f' ({found})' if found else ''}",
        where=f"layer '{layer.name}'",
        remedy=_REMEDY,
    )


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.is_sparse != other.is_sparse:
        return False
    if one.is_sparse:
        one, other = one.to_dense(), other.to_dense()
    return torch.equal(one.nan_to_num(), other.nan_to_num())
