"""A dropout in a forward between submodules, which is on in training and off in evaluation."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.nn import functional


class ModeDropout(nn.Module):
    """Drops elements if one of the modules that it follows is in training; without any, its own mode counts.

    The forward that contains it is not called in a pipeline. The submodules that this forward calls are, and
    `model.eval()` sets their mode too.

    Args:
        probability: that an element becomes zero.
        followed: modules whose mode it follows. They are not registered as its children.
        draws: the context in which it draws, if it draws other numbers than other ranks.
    """

    def __init__(
        self,
        probability: float,
        followed: Sequence[nn.Module],
        draws: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        super().__init__()
        self.probability, self.draws = probability, draws
        self.followed = tuple(followed)

    def forward(self, tensor: Tensor) -> Tensor:
        """Return the tensor, in training with dropped elements."""
        training = any(each.training for each in self.followed) if self.followed else self.training
        if not training:
            return tensor
        with self.draws():
            return functional.dropout(tensor, self.probability)
