"""How the replicas of each stage synchronise: the options of the pipeline, and what the plan shards."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from graphpipe.costs import State
from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan, Stage
from graphpipe.run.weights.check_sync import choices
from graphpipe.run.weights.registry import find_sync

_SHARDING: Mapping[State, str] = MappingProxyType({"all": "fsdp2", "layers": "fsdp2-layers"})
"""The synchronisation of a stage whose replicas shard everything."""


@dataclass(frozen=True, slots=True)
class StageSyncs:
    """The synchronisation of every stage, and the stages whose replicas shard only the optimizer's state (ZeRO-1)."""

    names: tuple[str, ...]
    """The name of each stage's synchronisation."""
    zero1: frozenset[int]

    @staticmethod
    def of(plan: Plan, engine: str, *, shard_optimizer: bool) -> "StageSyncs":
        """Combine the options with `Stage.state`: a stage shards what either of them asks for.

        Args:
            plan: to be run.
            engine: name of the synchronisation that the options choose.
            shard_optimizer: whether the options shard the optimizer's state of all stages.

        Raises:
            InvalidInput: a stage is to shard its optimizer's state in two ways.
        """
        for stage in plan.stages:
            _check(stage, engine, shard_optimizer=shard_optimizer)
        shards = {at for at, stage in enumerate(plan.stages) if shard_optimizer or stage.state == "optimizer"}
        return StageSyncs(tuple(_name(engine, stage.state) for stage in plan.stages), frozenset(shards))


def _name(engine: str, state: State) -> str:
    if state == "all" and find_sync(engine).traits.shards_parameters:
        return engine
    return _SHARDING.get(state, engine)


def _check(stage: Stage, engine: str, *, shard_optimizer: bool) -> None:
    where = f"stage '{stage.name}'"
    if stage.state in _SHARDING and shard_optimizer:
        raise InvalidInput(
            "the plan shards its weights, gradients and optimizer state, and shard_optimizer is true",
            where=where,
            remedy="Leave shard_optimizer out.",
        )
    if stage.state == "optimizer" and find_sync(engine).traits.shards_optimizer:
        raise InvalidInput(
            f"the plan shards its optimizer state, and engine '{engine}' shards it itself",
            where=where,
            remedy=f"Choose {choices(lambda traits: not traits.shards_optimizer)}.",
        )
