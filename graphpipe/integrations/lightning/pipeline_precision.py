"""The precision plugin of a pipeline: it hands over the gradients, and clips them by their norm over all stages."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from graphpipe.integrations.lightning.namespace import Precision


class PipelinePrecision(Precision):
    """Stands in for the backward, which the pipeline has done with the forward.

    Args:
        hand_over: gives the parameters the gradients of the last mini-batch, in addition to those that they have.
        clip: clips all gradients by their norm.
        name: of the precision.
    """

    def __init__(self, hand_over: Callable[[], None], clip: Callable[[float], object], name: Any) -> None:
        super().__init__()
        self.precision = name
        self._hand_over = hand_over
        self._clip = clip

    def backward(self, tensor: Tensor, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Hand over the gradients."""
        del tensor, model, optimizer, args, kwargs
        self._hand_over()

    def clip_grad_by_norm(self, optimizer: Optimizer, clip_val: int | float) -> None:
        """Clip by the norm over all stages, on all ranks."""
        del optimizer
        self._clip(float(clip_val))
