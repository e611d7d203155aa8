"""Stages one after the other on groups of devices, as tools without a graph of stages need them.

devices      looped, two rounds      V
0, 1         s0       s3             s0             s5
2, 3            s1       s4             s1       s4
4, 5               s2       s5             s2 s3
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan

PLAN_A_CHAIN = (
    "Plan again with `--planner pipedream`, whose stages form a chain, or run this plan with `graphpipe train`."
)
ONE_STAGE_EACH = "Plan again with `--stages-per-device 1`."
PLAN_ALIKE = "Plan again with `--planner gpipe`, whose stages are alike, or run this plan with `graphpipe train`."


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChain:
    """Stages of a plan, each of which sends only to the next one."""

    stages: tuple[int, ...]
    """Positions in `Plan.stages`, in order."""
    groups: tuple[tuple[int, ...], ...]
    """The devices of each pipeline rank. All groups have equally many."""
    placement: Literal["looped", "V"]
    micro_batch: int
    """Samples of a micro-batch over all replicas, in every stage."""
    tensor: int = 1
    """The tensor-parallel degree of every stage. The devices of a replica follow each other in its group."""

    @property
    def degree(self) -> int:
        """The data-parallel degree of every stage."""
        return len(self.groups[0]) // self.tensor

    @property
    def rounds(self) -> int:
        """How many stages each device hosts."""
        return len(self.stages) // len(self.groups)

    @property
    def stages_by_rank(self) -> tuple[tuple[int, ...], ...]:
        """Places in the chain of each pipeline rank's stages."""
        ranks = _order(len(self.groups), len(self.stages), self.placement)
        return tuple(
            tuple(place for place, rank in enumerate(ranks) if rank == wanted) for wanted in range(len(self.groups))
        )


def chain_of(plan: Plan, stages: Sequence[int] | None = None) -> StageChain:
    """Return the stages of a plan, or some of them, as a chain.

    Raises:
        InvalidInput: they do not form a chain, their micro-batches do not divide the mini-batch, or they differ in
            degree, micro-batch or the number of stages of a device. The message names the edge or the stage.
    """
    plan.require_training()
    chosen = tuple(range(len(plan.stages)) if stages is None else stages)
    _check_chain(plan, chosen)
    _check_alike(plan, chosen)
    groups = tuple(dict.fromkeys(plan.stages[stage].devices for stage in chosen))
    hosts = [groups.index(plan.stages[stage].devices) for stage in chosen]
    for placement in ("looped", "V"):
        if len(chosen) % len(groups) == 0 and hosts == _order(len(groups), len(chosen), placement):
            first = plan.stages[chosen[0]]
            return StageChain(
                stages=chosen,
                groups=groups,
                placement=placement,
                micro_batch=first.micro_batch,
                tensor=first.tensor,
            )
    raise InvalidInput(
        f"the stages visit the {len(groups)} groups of devices in the order {hosts}, and other tools know only "
        "rounds over all groups and the V",
        where="plan",
        remedy=ONE_STAGE_EACH,
    )


def check_looped(chain: StageChain, why: str) -> None:
    """Check that the stages go round over the devices.

    Args:
        chain: the stages.
        why: the other tool needs that, as the end of a sentence.

    Raises:
        InvalidInput: they turn back, as a V.
    """
    if chain.placement == "V":
        what = f"the stages lie on the devices as a V, and {why}"
        raise InvalidInput(what, where="plan", remedy=ONE_STAGE_EACH)


def _order(groups: int, stages: int, placement: str) -> list[int]:
    if placement == "looped":
        return [place % groups for place in range(stages)]
    there = list(range(groups))
    return [(there if turn % 2 == 0 else there[::-1])[place] for turn in range(stages // groups) for place in there]


def _check_chain(plan: Plan, chosen: tuple[int, ...]) -> None:
    names = [stage.name for stage in plan.stages]
    follows = set(pairwise(chosen))
    for edge in plan.edges:
        if edge.source in chosen and edge.target in chosen and (edge.source, edge.target) not in follows:
            what = f"edge {names[edge.source]} -> {names[edge.target]} skips a stage, and the format holds only a chain"
            raise InvalidInput(what, where="plan", remedy=PLAN_A_CHAIN)
    held = {(edge.source, edge.target) for edge in plan.edges}
    for source, target in pairwise(chosen):
        if (source, target) not in held:
            what = (
                f"stages {names[source]} and {names[target]} are branches without an edge between them, and the "
                "format holds only a chain"
            )
            raise InvalidInput(what, where="plan", remedy=PLAN_A_CHAIN)


def _check_alike(plan: Plan, chosen: tuple[int, ...]) -> None:
    first = plan.stages[chosen[0]]
    if left := plan.batch_size % first.micro_batch:
        what = f"micro-batches of {first.micro_batch} leave {left} of {plan.batch_size} samples for the last one"
        raise InvalidInput(
            f"{what}, and the format holds only equal micro-batches",
            where="plan",
            remedy="Plan with a micro-batch that divides the batch (--micro-batch).",
        )
    for stage in (plan.stages[place] for place in chosen[1:]):
        for field, here, there in (
            ("tensor-parallel degree", first.tensor, stage.tensor),
            ("data-parallel degree", first.degree, stage.degree),
            ("micro-batch", first.micro_batch, stage.micro_batch),
        ):
            if here != there:
                what = f"{first.name} has {field} {here} and {stage.name} has {there}, and the format holds one"
                raise InvalidInput(what, where="plan", remedy=PLAN_ALIKE)
    for one, other in combinations((plan.stages[place] for place in chosen), 2):
        if one.devices != other.devices and set(one.devices) & set(other.devices):
            what = f"{one.name} and {other.name} share some devices but not all, and the format cannot hold that"
            raise InvalidInput(what, where="plan", remedy=ONE_STAGE_EACH)
