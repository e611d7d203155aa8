"""The first of the devices that share operators, alone on a machine: it computes its part, and exchanges nothing."""

from typing import final

from torch import Tensor, nn

from graphpipe.graph import Graph
from graphpipe.model.shards.shared_submodule import SharedSubmodule
from graphpipe.model.shards.team import ShardTeam
from graphpipe.model.split.split import submodules_for
from graphpipe.model.split.submodules import Submodules


@final
class LoneRank(ShardTeam):
    """The first of several devices. Its results have the right shapes, and miss the parts of the others."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks, 0)

    def add_up(self, values: Tensor) -> None:
        """Leave the own part as it is."""

    def add_up_own(self, values: Tensor) -> Tensor:
        """Return the own part."""
        return values[0].clone()

    def gather(self, values: Tensor) -> list[Tensor]:
        """Return the own part in place of all."""
        return [values] * self.size


def first_of_ranks(model: nn.Module, graph: Graph, ranks: int) -> Submodules:
    """Return the submodules that the first of several devices calls, if each operator is a stage, in their order.

    Args:
        model: the user's.
        graph: of it, with layouts.
        ranks: how many devices share each operator that so many can share.
    """
    submodules = submodules_for(model, graph)
    for stage, name in enumerate(graph.order):
        shards = graph[name].shards
        if shards is not None and shards.shared_by(ranks):
            submodules.sharing[stage] = SharedSubmodule(shards.submodules, LoneRank(ranks), submodules.slice_of)
    return submodules
