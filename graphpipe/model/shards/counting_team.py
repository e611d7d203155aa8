"""One of two ranks, which notes what they would exchange. The graph of a model is run with it, without data."""

from collections.abc import Iterable, Mapping
from typing import final

from torch import Tensor, fx

from graphpipe.graph import Exchanges
from graphpipe.model.capture.reading import SAMPLES, Reading
from graphpipe.model.shards.team import ExchangeKind, ShardTeam

_RANKS = 2
_KINDS: tuple[ExchangeKind, ...] = ("forward", "backward", "weights")
Exchanged = Mapping[ExchangeKind, Exchanges]
"""What is exchanged in each pass."""
_Noted = list[tuple[ExchangeKind, float, float]]
"""All-reduces and the bytes that they sum, by pass."""


def for_weights(exchanged: Exchanged) -> Exchanged:
    """Return the same, where only parameters need the gradients of a backward."""
    forward, backward, weights = (exchanged[kind] for kind in _KINDS)
    return {"forward": forward, "backward": Exchanges(), "weights": backward + weights}


@final
class CountingTeam(ShardTeam):
    """One of two ranks, which notes what is exchanged, and exchanges nothing.

    Nodes run with few samples, then with many. So bytes of samples are told from those of parameters.
    """

    def __init__(self) -> None:
        super().__init__(_RANKS, 0)
        self._few: dict[fx.Node | None, _Noted] = {}
        self._many: dict[fx.Node | None, _Noted] = {}
        self.node: fx.Node | None = None
        """The node that runs."""

    def begin(self, node: fx.Node) -> None:
        """Note what follows as that of one node, which may have run before."""
        self.node = node
        if node in self._many:
            self._few.setdefault(node, self._many[node])
        self._many[node] = []

    def exchanged(self, nodes: Iterable[fx.Node], readings: Mapping[fx.Node, Reading]) -> Exchanged:
        """Return what was noted of some nodes, all together. One that repeats another exchanges what that one does."""
        found = dict.fromkeys(_KINDS, Exchanges())
        for node in nodes:
            ran = readings[node].repeats or node
            many, few = self._many.get(ran, []), self._few.get(ran, [])
            for at, (kind, count, summed) in enumerate(many):
                before = few[at][2] if len(few) == len(many) else summed * SAMPLES[0] / SAMPLES[1]
                each = (summed - before) / (SAMPLES[1] - SAMPLES[0])
                found[kind] += Exchanges(
                    reductions=count, bytes_per_sample=each, bytes=max(0.0, summed - each * SAMPLES[1])
                )
        return found

    def add_up(self, values: Tensor) -> None:
        """Do nothing."""

    def add_up_own(self, values: Tensor) -> Tensor:
        """Return an entry."""
        return values[0].clone()

    def gather(self, values: Tensor) -> list[Tensor]:
        """Return the tensor for both ranks."""
        return [values] * self.size

    def note(self, kind: ExchangeKind, values: Tensor, reductions: float = 1.0) -> None:
        """Note the bytes."""
        noted = self._many.setdefault(self.node, [])
        noted.append((kind, reductions, float(values.numel() * values.element_size())))
