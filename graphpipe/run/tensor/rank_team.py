"""The ranks that share the replicas of a stage, on the connections of the world."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor

from graphpipe.devices.registry import kind_of
from graphpipe.model.shards.team import ShardTeam
from graphpipe.run.comm.world import World
from graphpipe.run.device.rng import RngState, derive_seed, seed


@final
class RankTeam(ShardTeam):
    """The ranks that share a replica.

    Args:
        world: this rank.
        ranks: of the replica, by position. A group of them is open.
        position: of this rank.
    """

    def __init__(self, world: World, ranks: Sequence[int], position: int) -> None:
        super().__init__(len(ranks), position)
        self._world, self._ranks = world, tuple(ranks)
        self._order = [sorted(ranks).index(rank) for rank in ranks]
        """Where each position is in groups, whose ranks ascend."""

    def add_up(self, values: Tensor) -> None:
        """Replace a tensor by its sum over the ranks."""
        if _has_data(values):
            self._world.sum(values, self._ranks)

    def add_up_own(self, values: Tensor) -> Tensor:
        """Return the entry of this position of the sum over the ranks."""
        if not _has_data(values):
            return values[self.position].clone()
        if self._order != [*range(self.size)]:
            values = values[[self._order.index(at) for at in range(self.size)]]
        return self._world.sum_own(values, self._ranks)

    def gather(self, values: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, by position."""
        if not _has_data(values):
            return [values] * self.size
        found = self._world.gather(values, self._ranks)
        return [found[at] for at in self._order]

    @contextmanager
    def own_draws(self) -> Generator[None]:
        """Draw other random numbers than the other ranks in a block."""
        device = self._world.device
        number = int(torch.randint(2**62, ()))  # the same on all ranks, and another one each time
        before = RngState.now(device)
        seed(device, derive_seed(number, self.position))
        try:
            yield
        finally:
            torch.default_generator.set_state(before.cpu)
            if before.own is not None:
                kind_of(device).set_random_state(device, before.own)


@final
class AbsentTeam(ShardTeam):
    """The ranks of a stage that this rank does not compute. Only names, shapes and dtypes of the stage matter here."""

    def add_up(self, values: Tensor) -> None:
        """Leave a tensor without data as it is."""
        assert not _has_data(values), "this rank does not compute the stage"

    def add_up_own(self, values: Tensor) -> Tensor:
        """Return an entry without data."""
        assert not _has_data(values), "this rank does not compute the stage"
        return values[self.position].clone()

    def gather(self, values: Tensor) -> list[Tensor]:
        """Return tensors without data."""
        assert not _has_data(values), "this rank does not compute the stage"
        return [values] * self.size


def _has_data(values: Tensor) -> bool:
    # Tensors without data are of a class of their own, or on the meta device.
    return type(values) is Tensor and not values.is_meta
