"""The work of one stage, as list schedulers read it: seconds of its tasks, and where its messages go."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from graphpipe.plans import Plan
from graphpipe.plans.device_memory import between_halves
from graphpipe.plans.estimates import sum_seconds
from graphpipe.plans.in_flight import in_flight_samples
from graphpipe.schedule.schedule import Kind

Portions = tuple[tuple[tuple[int, float], ...], ...]
"""Micro-batches of the receiver that need samples of each micro-batch of a sender, with the seconds of the transfer
between the slowest pair of replicas."""


class MessageRoute(NamedTuple):
    """Where a stage's tasks send their results along one edge."""

    to: int
    """Position of the receiver in `PlanWork.stages`."""
    channel: int
    """Number of the channel: an edge, or a port of the sender. Messages of one channel are sent one after the other."""
    occupied: float
    """Share of a transfer in which it takes the channel. The rest is spent at a port of the receiver."""
    portions: Portions


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """One stage. All its replicas do the same at the same times, at the pace of the slowest."""

    micro_batch: int
    count: int
    """Number of micro-batches."""
    room: int
    """Micro-batches that may be in flight, from their forward to the end of their weight gradient."""
    warm_up: int
    """Micro-batches in flight under 1F1B, at most `room`."""
    kept: float
    """What a micro-batch keeps in memory from its input gradient to its weight gradient, in units of what it keeps
    before; at most 1. Whether gradients that wait make it more than fits is seen once the schedule is known."""
    seconds: Mapping[Kind, float] = field(hash=False)
    sum_seconds: float
    """Seconds of all-reduce and exchange of shared gradients after the stage's last task."""
    optimizer_seconds: float
    """Seconds that the optimizer takes after these sums."""
    places: tuple[int, ...] = ()
    """Positions in `PlanWork.devices`."""
    outputs: tuple[MessageRoute, ...] = ()
    """What each forward sends."""
    gradients: tuple[MessageRoute, ...] = ()
    """What each backward sends."""
    inputs: tuple[int, ...] = ()
    """How many messages each forward waits for."""
    returns: tuple[int, ...] = ()
    """How many messages each backward waits for."""

    @property
    def split(self) -> bool:
        """Whether the backward is split: the stage has weights, another stage waits for the input gradient, the stage
        neither recomputes nor offloads, and the plan does not forbid it."""
        return self.seconds["W"] > 0


def work_of_stages(plan: Plan) -> list[StageWork]:
    """Return the work of every stage, without places and messages."""
    sizes = [stage.micro_batch for stage in plan.stages]
    needed = in_flight_samples(plan.batch_size, sizes, [1] * len(sizes), plan.successors)
    return [_own_work(plan, stage, samples) for stage, samples in enumerate(needed)]


def _own_work(plan: Plan, number: int, needed: int) -> StageWork:
    stage, splits = plan.stages[number], _splits(plan, number)

    def work() -> StageWork:
        tasks, count = plan.tasks_seconds(number), plan.micro_batches(number)
        weight = max(task.weight_half for task in tasks) if splits else 0.0
        room = min(count, stage.in_flight // stage.micro_batch)
        return StageWork(
            micro_batch=stage.micro_batch,
            count=count,
            room=room,
            warm_up=min(room, needed // stage.micro_batch),
            kept=between_halves(plan.cost_model, stage).counted_share,
            seconds={
                "F": max(task.forward for task in tasks),
                "B": max(task.backward for task in tasks),
                "I": max(task.input_half for task in tasks),
                "W": weight + plan.costs.task_overhead_seconds if weight else 0.0,
            },
            sum_seconds=sum_seconds(plan, number),
            optimizer_seconds=plan.optimizer_seconds(number),
        )

    if plan.graph.shared:  # Tied gradients depend on the other stages.
        return work()
    alike = stage.ops, stage.devices, stage.micro_batch, stage.in_flight, stage.recompute, stage.state, stage.tensor
    return plan.cost_model.op_bytes.once(("work", *alike, splits, needed, plan.batch_size), work)


def _splits(plan: Plan, number: int) -> bool:
    return bool(plan.gradient_targets[number]) and plan.stages[number].may_split
