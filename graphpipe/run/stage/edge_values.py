"""The values on a stage edge: agreed before training, checked before they leave, entered where they arrive."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.model.stage_program import StageProgram, ValueSpec
from graphpipe.model.torch_private import same_but_no_leaf

EdgeSpecs = Mapping[int, tuple[ValueSpec, ...]]


def edge_specs(programs: Sequence[StageProgram]) -> dict[int, tuple[ValueSpec, ...]]:
    """Return the values on every edge, by position in `Plan.edges`; both ends must agree on them."""
    sent = {edge: specs for program in programs for edge, specs in program.sends.items()}
    received = {edge: specs for program in programs for edge, specs in program.receives.items()}
    assert sent == received, "the stage programs disagree on what crosses their edges"
    return dict(sorted(sent.items()))


def gradient_edges(specs: EdgeSpecs) -> frozenset[int]:
    """Return the edges along which a gradient comes back."""
    return frozenset(edge for edge, values in specs.items() if any(value.requires_grad for value in values))


def check_outputs(outputs: Mapping[str, Tensor], specs: EdgeSpecs, rows: int, stage: str) -> None:
    """Check what a stage is about to send against what its consumers expect.

    Raises:
        InvalidInput: another shape or dtype; a consumer's buffer would overflow or be misread.
    """
    for spec in (spec for values in specs.values() for spec in values):
        value, shape = outputs[spec.name], (rows, *spec.sample_shape)
        if tuple(value.shape) != shape or value.dtype != spec.dtype:
            raise InvalidInput(
                f"value '{spec.name}' is {_show(value.dtype)}{list(value.shape)}, "
                f"its consumers expect {_show(spec.dtype)}{list(shape)}",
                where=f"stage '{stage}'",
                remedy="Give samples of the same shape as the example inputs (pad them), and keep samples first.",
            )


def check_message(rows: Tensor, spec: ValueSpec, samples: int) -> None:
    """Check a message just before it leaves: no receiver can defend itself.

    Raises:
        InvalidInput: another shape or dtype than the ranks have agreed on.
    """
    if rows.shape != (samples, *spec.sample_shape) or rows.dtype != spec.dtype:
        raise InvalidInput(
            f"the message is {_show(rows.dtype)}{list(rows.shape)}, "
            f"agreed was {_show(spec.dtype)}{[samples, *spec.sample_shape]}",
            where=f"value '{spec.name}'",
            remedy="It was not sent: the receiver would have misread it, or been aborted by it.",
        )


def _show(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def enter(leaf: Tensor) -> Tensor:
    """Return a received value as the stage computes with it; its gradient arrives in `leaf.grad`.

    It is no leaf, so that a stage may begin with an in-place operation (`ReLU(inplace=True)`).
    """
    return same_but_no_leaf(leaf) if leaf.requires_grad else leaf


def gradient_of(leaf: Tensor) -> Tensor:
    """Return the gradient that arrived at a received value; zeros if the stage's result does not depend on it."""
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
