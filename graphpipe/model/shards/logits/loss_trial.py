"""Whether a loss function reads logits in a cross-entropy alone, and what the ranks that divide them exchange then."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from graphpipe.graph import Exchanges
from graphpipe.model.shards.logits.divided_logits import DividedLogits
from graphpipe.model.shards.team import ExchangeKind, ShardTeam, own_range
from graphpipe.model.torch_private import flatten, unflatten

_RANKS = 2


@final
class _Reading(ShardTeam):
    """One of two ranks, which notes what is exchanged, and gathers no logits."""

    def __init__(self) -> None:
        super().__init__(_RANKS, 0)
        self.exchanged = Exchanges()

    def add_up(self, values: Tensor) -> None:
        """Do nothing."""

    def add_up_own(self, values: Tensor) -> Tensor:
        """Refuse: the loss is no cross-entropy."""
        raise NotImplementedError

    def gather(self, values: Tensor) -> list[Tensor]:
        """Return maxima for both ranks."""
        if values.ndim > 1:
            raise NotImplementedError("the loss reads logits of all ranks")
        return [values] * self.size

    def note(self, kind: ExchangeKind, values: Tensor, reductions: float = 1.0) -> None:
        """Note the bytes."""
        self.exchanged += Exchanges(reductions=reductions, bytes=float(values.numel() * values.element_size()))


def exchanged_by_loss(
    loss_fn: Callable[[Any, Any], Any], output: Any, logits: Tensor, targets: Any = None
) -> Exchanges | None:
    """Return what ranks exchange for a loss, with the bytes of all samples; None if it needs the logits of all ranks.

    Nothing is computed: the loss function is called with tensors without data.

    Args:
        loss_fn: takes the model's output and targets.
        output: of the model, on the meta device.
        logits: one of its tensors, (n, ..., words).
        targets: of these samples. None: one label for each row of the logits.
    """
    if targets is None:
        targets = torch.zeros(logits.shape[:-1], dtype=torch.long, device="meta")
    team, words = _Reading(), logits.shape[-1]
    start, stop = own_range(words, team.size, team.position)
    divided = DividedLogits(logits[..., start:stop], team, words, logits.ndim - 1)
    try:
        leaves, spec = flatten((output, targets))
        leaves = [divided if each is logits else each.to("meta") if _is_tensor(each) else each for each in leaves]
        given, wanted = unflatten(leaves, spec)
        loss_fn(given, wanted)
    except Exception:  # any error of a loss that meets tensors without data, or of what it does to logits
        return None
    return team.exchanged if team.exchanged.reductions else None


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)
