"""What a pipeline cannot do for a LightningModule or its Trainer: refused by name before the first step."""

from typing import Any

from graphpipe.errors import InvalidInput
from graphpipe.graph import Precision as PrecisionName
from graphpipe.integrations.lightning.namespace import LightningModule, Trainer

_PRECISIONS: dict[str, PrecisionName] = {"32-true": "fp32", "bf16-mixed": "bf16"}
_AVERAGING = ("StochasticWeightAveraging", "WeightAveraging", "EMAWeightAveraging")
"""Callbacks that read all weights after each step, of which a rank has those of its stages."""


def check_module(module: LightningModule, trainer: Trainer) -> None:
    """Check that a pipeline can train a module.

    Raises:
        InvalidInput: names what it cannot do, and the remedy.
    """
    if not module.automatic_optimization:
        raise InvalidInput(
            "is False, and a pipeline computes the gradients of a mini-batch in one call",
            where="automatic_optimization",
            remedy="Optimize automatically, or use gp.Pipeline with a loop of your own.",
        )
    if type(module).backward is not LightningModule.backward:
        raise InvalidInput(
            f"is overridden by {type(module).__name__}, and the pipeline does the backward",
            where="backward",
            remedy="Change gradients in on_after_backward or on_before_optimizer_step.",
        )
    for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
        if type(callback).__name__ in _AVERAGING and trainer.world_size > 1:
            raise InvalidInput(
                "reads all weights in each step, of which a rank has only those of its stages",
                where=type(callback).__name__,
                remedy="Average the checkpoints after the training.",
            )


def precision_of(plugin: Any) -> PrecisionName:
    """Return the precision of the pipeline for a precision plugin.

    Raises:
        InvalidInput: the pipeline does not have it.
    """
    name = str(plugin.precision)
    if name not in _PRECISIONS:
        raise InvalidInput(f"is '{name}'", where="precision", remedy=f"Take {' or '.join(_PRECISIONS)}.")
    return _PRECISIONS[name]
