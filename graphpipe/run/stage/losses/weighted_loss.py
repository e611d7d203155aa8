"""Losses whose mean has weights: a cross-entropy without the ignored labels, or with a weight for each class."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

IGNORED = -100
"""The label that a cross-entropy of torch ignores by default."""


@dataclass(frozen=True, slots=True)
class WeightedLoss:
    """A loss that is a mean with weights, and the sum of the weights: exact for every division into micro-batches.

    `gp.WeightedLoss(token_loss, weight=lambda targets: (targets != -100).sum())` is a mean over tokens with labels.
    The loss of a mini-batch is the sum of loss times weight over its micro-batches, divided by the sum of weights.
    """

    function: Callable[[Any, Any], Tensor]
    """Takes the model's output and the targets of some samples, and returns the mean (0-d)."""
    weight: Callable[[Any], Tensor | float]
    """Takes the targets of some samples, and returns the sum of their weights. It is 0 where nothing counts."""

    def __call__(self, output: Any, targets: Any) -> Tensor:
        """Return the mean of some samples."""
        return self.function(output, targets)


def recognised(loss_fn: Callable[[Any, Any], Any]) -> WeightedLoss | None:
    """Return a loss of torch with its weights; None if its mean has none, or if it is not known.

    Args:
        loss_fn: a module of torch (`nn.CrossEntropyLoss`), a function (`cross_entropy`), or a `partial` of a function.
    """
    settings = _settings(loss_fn)
    if settings.get("reduction") == "sum":
        return WeightedLoss(loss_fn, once)
    if settings.get("reduction") != "mean" or "ignore_index" not in settings:
        return None
    weights, ignored = settings["weight"], settings["ignore_index"]
    return WeightedLoss(loss_fn, partial(_labels, ignored=ignored, weights=weights))


def once(targets: Any) -> float:
    """Return the weight of a sum: 1 for any number of samples, so that losses of micro-batches are added up."""
    del targets
    return 1.0


def _settings(loss_fn: Any) -> Mapping[str, Any]:
    # The arguments beside outputs and targets. Empty for what is not a loss of torch.
    kind = type(loss_fn)
    if isinstance(loss_fn, nn.Module):
        own = next(each for each in kind.__mro__ if "forward" in vars(each)).__module__
        names = ("reduction", "ignore_index", "weight")
        found = {name: getattr(loss_fn, name) for name in names if hasattr(loss_fn, name)}
        return found if own == "torch.nn.modules.loss" else {}
    function, given = (
        (loss_fn.func, loss_fn.keywords) if isinstance(loss_fn, partial) and not loss_fn.args else (loss_fn, {})
    )
    if getattr(function, "__module__", "") != functional.__name__:
        return {}
    defaults = {name: each.default for name, each in signature(function).parameters.items()}
    return {**defaults, **given}


def _labels(targets: Tensor, ignored: int, weights: Tensor | None) -> Tensor | float:
    if targets.is_floating_point():  # probabilities of classes, whose mean has no weights
        return float(len(targets))
    counts = targets != ignored
    if weights is None:
        return counts.sum()
    found = weights.detach().to(targets.device)[torch.where(counts, targets, 0)]
    return (found * counts).sum(dtype=torch.float64)
