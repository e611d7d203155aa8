"""Shapes and dtypes of the values on stage edges, and the checks before a value is sent."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from graphpipe.devices.registry import kind_of
from graphpipe.errors import InvalidInput
from graphpipe.model.stage_program import StageProgram, ValueSpec
from graphpipe.model.torch_private import flatten, non_leaf_alias

EdgeSpecs = Mapping[int, tuple[ValueSpec, ...]]


def edge_specs(programs: Sequence[StageProgram]) -> dict[int, tuple[ValueSpec, ...]]:
    """Return the values on every edge, by position in `Plan.edges`. Both ends must agree on them."""
    sent = {edge: specs for program in programs for edge, specs in program.sends.items()}
    received = {edge: specs for program in programs for edge, specs in program.receives.items()}
    assert sent == received, "the stage programs at the two ends of an edge disagree on its values"
    return dict(sorted(sent.items()))


def gradient_edges(specs: EdgeSpecs) -> frozenset[int]:
    """Return the edges along which a gradient comes back.

    They include the edges without values, which only order the stages of a sequential pipeline, and their backwards.
    """
    return frozenset(
        edge for edge, values in specs.items() if not values or any(value.requires_grad for value in values)
    )


def check_outputs(outputs: Mapping[str, Tensor], specs: EdgeSpecs, rows: int, stage: str) -> None:
    """Check the outputs of a stage against the values that its consumers expect.

    Raises:
        InvalidInput: the shape or dtype differs. The message would not fit the consumer's buffer.
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


def check_result(result: object, dtypes: Sequence[torch.dtype | None], stage: str) -> None:
    """Check the dtypes of the model's output, which no consumer checks.

    Args:
        result: the model's output.
        dtypes: of its leaves, as the model was captured; None for what was not a tensor.
        stage: that has computed it.

    Raises:
        InvalidInput: a dtype differs.
    """
    leaves: list[object] = [result] if isinstance(result, Tensor) else flatten(result)[0]
    for number, (leaf, dtype) in enumerate(zip(leaves, dtypes, strict=False), 1):
        if isinstance(leaf, Tensor) and dtype is not None and leaf.dtype != dtype:
            which = f"tensor {number} of the model's output" if len(leaves) > 1 else "the model's output"
            raise InvalidInput(
                f"{which} is {_show(leaf.dtype)}, it was captured as {_show(dtype)}",
                where=f"stage '{stage}'",
                remedy=f"Return the same dtype for every mini-batch: .to(torch.{_show(dtype)}).",
            )


def check_message(rows: Tensor, spec: ValueSpec, samples: int) -> None:
    """Check a message just before it is sent, because the receiver cannot check it.

    Raises:
        InvalidInput: the shape or dtype differs from what the ranks have agreed on.
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
    """Return a received value for the stage to compute with. Its gradient arrives in `leaf.grad`.

    It is not a leaf, so a stage may begin with an in-place operation (`ReLU(inplace=True)`).
    """
    return non_leaf_alias(leaf) if leaf.requires_grad else leaf


def gradient_of(leaf: Tensor) -> Tensor:
    """Return the gradient that arrived at a received value, or `no_gradient` if there is none."""
    if leaf.grad is None:
        return no_gradient(leaf)
    # On a GPU, a gradient of negative zeros counts as None, because asking would wait for the GPU at every message.
    return leaf.grad + 0 if kind_of(leaf.device).on_host and _begins_negative(leaf.grad) else leaf.grad


def no_gradient(like: Tensor) -> Tensor:
    """Return what stands for None in a message: zeros with a negative sign.

    They change nothing that they are added to, and a sum is all negative zeros only if all terms are. Plain PyTorch
    tells None from a gradient of zeros: an optimizer decays no weight without a gradient.
    """
    return torch.zeros_like(like).neg_()


def is_none(gradient: Tensor) -> bool:
    """True for a sum of `no_gradient` only. Waits for a GPU."""
    return _begins_negative(gradient) and bool(torch.signbit(_parts(gradient)).all()) and not bool(gradient.any())


def _begins_negative(gradient: Tensor) -> bool:
    # Whether the first element is a negative zero, which nearly always tells that a gradient is not None.
    first = _parts(gradient[:1].detach()).reshape(-1)[:1]
    return bool(first.numel()) and bool((torch.signbit(first) & (first == 0)).item())


def _parts(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
