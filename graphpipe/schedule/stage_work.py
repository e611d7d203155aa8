"""What a list scheduler knows of a plan: the seconds of each stage's tasks, and which task waits for which messages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import NamedTuple

from graphpipe.plan import Plan
from graphpipe.plan.bounds import update_seconds
from graphpipe.plan.in_flight import in_flight_samples
from graphpipe.schedule.schedule import Kind

MessageSeconds = Callable[[int, int], float]
"""Of a position in `Plan.edges` and a number of samples."""


class Message(NamedTuple):
    """Part of a task's result that another stage's task needs."""

    stage: int
    micro_batch: int
    """The task of that stage which needs it."""
    seconds: float
    """Of the transfer between the slowest pair of replicas."""
    channel: int
    """Messages of one channel follow each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """One stage as a list scheduler sees it: its replicas do the same at the same times, at the slowest one's pace."""

    devices: tuple[int, ...]
    count: int
    """Micro-batches."""
    room: int
    """Micro-batches that may be in flight, from their forward to the end of their (weight) gradient."""
    warm_up: int
    """Micro-batches in flight under 1F1B, at most `room`."""
    kept: float
    """Share of a micro-batch's activations that stays from its input gradient to its weight gradient."""
    seconds: Mapping[Kind, float] = field(hash=False)
    outputs: tuple[tuple[Message, ...], ...]
    """What each forward sends."""
    gradients: tuple[tuple[Message, ...], ...]
    """What each backward sends."""
    tail_seconds: float
    """Of all-reduce, exchange of shared gradients and optimizer, after the last task."""

    @property
    def split(self) -> bool:
        """Whether to do the backward in two halves: there are weights, someone waits for the input gradient, nothing
        is computed again, and the plan does not forbid it."""
        return self.seconds["W"] > 0


def works_of(plan: Plan) -> tuple[StageWork, ...]:
    """Return the work of every stage."""
    sizes = [stage.micro_batch for stage in plan.stages]
    needed = in_flight_samples(plan.batch_size, sizes, [1] * len(sizes), plan.successors)
    seconds = cache(partial(_seconds, plan))
    return tuple(_work_of(plan, stage, samples, seconds) for stage, samples in enumerate(needed))


def _work_of(plan: Plan, number: int, needed: int, message_seconds: MessageSeconds) -> StageWork:
    stage, costs = plan.stages[number], plan.cost_model
    samples = stage.micro_batch / stage.degree
    tasks = [costs.task_seconds(stage.ops, device, samples, stage.recompute) for device in stage.devices]
    weight = max(task.weight_gradient for task in tasks) if _splits(plan, number) else 0.0
    count = plan.micro_batches(number)
    room = min(count, stage.in_flight // stage.micro_batch)
    return StageWork(
        devices=stage.devices,
        count=count,
        room=room,
        warm_up=min(room, needed // stage.micro_batch),
        kept=plan.costs.kept_for_weight_gradient,
        seconds={
            "F": max(task.forward for task in tasks),
            "B": max(task.backward for task in tasks),
            "I": max(task.input_gradient for task in tasks),
            "W": weight + plan.costs.task_overhead_seconds if weight else 0.0,
        },
        outputs=_messages(plan, number, message_seconds, forward=True),
        gradients=_messages(plan, number, message_seconds, forward=False),
        tail_seconds=update_seconds(plan, number),
    )


def _splits(plan: Plan, number: int) -> bool:
    # A half that waits would hold on to all that the other half has computed again.
    stage = plan.stages[number]
    return bool(plan.gradient_targets[number]) and stage.recompute == "none" and stage.backward == "auto"


def _messages(
    plan: Plan, number: int, message_seconds: MessageSeconds, *, forward: bool
) -> tuple[tuple[Message, ...], ...]:
    """What every micro-batch of a stage sends."""
    size, found = plan.stages[number].micro_batch, [list[Message]() for _ in range(plan.micro_batches(number))]
    for position, edge in enumerate(plan.edges):
        if number != (edge.source if forward else edge.target) or not (forward or position in plan.gradient_edges):
            continue
        other = edge.target if forward else edge.source
        step = plan.stages[other].micro_batch
        for index, sent in enumerate(found):
            start, stop = index * size, (index + 1) * size
            for there in range(start // step, -(-stop // step)):
                samples = min(stop, (there + 1) * step) - max(start, there * step)
                sent.append(Message(other, there, message_seconds(position, samples), 2 * position + forward))
    return tuple(map(tuple, found))


def _seconds(plan: Plan, position: int, samples: int) -> float:
    edge = plan.edges[position]
    source, target = plan.stages[edge.source], plan.stages[edge.target]
    count = edge.bytes_per_sample * samples / max(source.degree, target.degree)
    return max(
        plan.cost_model.transfer_seconds(count, one, other) for one in source.devices for other in target.devices
    )
