"""Checks a rank's share of a mini-batch before a step."""

from collections.abc import Sequence

from torch import Tensor

from graphpipe.errors import InvalidInput, nearest
from graphpipe.graph import Input
from graphpipe.model.inputs import describe
from graphpipe.run.stage.shares.batch_share import BatchShare
from graphpipe.run.stage.shares.needs import Needs
from graphpipe.run.stage.tensor_tree import leaves


def check_share(share: BatchShare, needs: Needs, planned: Sequence[Input]) -> dict[str, Tensor]:
    """Check that a share holds what this rank needs, and return its inputs in the model's order.

    Args:
        share: of the mini-batch.
        needs: of this rank.
        planned: the model's inputs as the plan was made with them.

    Raises:
        InvalidInput: an input or row is missing or left over, or a sample has another shape or dtype than the example.
    """
    examples = {each.name: each for each in planned}
    for name in share.inputs:
        if name not in examples:
            raise InvalidInput(f"the model takes no input '{name}'", where="share", remedy=nearest(name, [*examples]))
        if name not in needs.inputs:
            raise InvalidInput(
                f"input '{name}' was given, which no stage of this rank reads",
                where="share",
                remedy="Give what pipeline.needs() names.",
            )
    named = {name: share.inputs[name] for name in examples if name in needs.inputs and name in share.inputs}
    if missing := [name for name in needs.inputs if name not in named]:
        raise InvalidInput(
            f"input '{missing[0]}' is missing, which a stage of this rank reads",
            where="share",
            remedy="Give what pipeline.needs() names.",
        )
    for name, tensor in named.items():
        _check_input(name, tensor, len(needs.inputs[name]), examples[name])
    for number, target in enumerate(leaves(share.targets)):
        _check_rows(f"target {number}", target, len(needs.targets))
    return named


def _check_input(name: str, tensor: object, rows: int, example: Input) -> None:
    if not isinstance(tensor, Tensor):
        raise InvalidInput(f"input '{name}' is a {type(tensor).__name__}, not a tensor", where="share")
    _check_rows(f"input '{name}'", tensor, rows)
    (given,) = describe({name: tensor})
    if given != example:
        raise InvalidInput(
            f"a sample is {given.dtype}{[*given.sample_shape]}, in the example it is "
            f"{example.dtype}{[*example.sample_shape]}",
            where=f"input '{name}'",
            remedy="Pad the samples to the shape of the example, or give every rank whole mini-batches.",
        )


def _check_rows(what: str, tensor: Tensor, rows: int) -> None:
    count = tensor.shape[0] if tensor.ndim else 0
    if count != rows:
        raise InvalidInput(
            f"{what} has {count} rows, this rank needs {rows}",
            where="share",
            remedy="pipeline.needs() gives their positions in the mini-batch.",
        )


def listed(samples: Sequence[int], most: int = 4) -> str:
    """Return the numbers of the first samples, for a message."""
    more = ", ..." if len(samples) > most else ""
    return ", ".join(map(str, samples[:most])) + more
