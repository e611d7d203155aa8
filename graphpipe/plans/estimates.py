"""Closed-form estimates of a finished plan: bottleneck and step time."""

from collections.abc import Sequence
from math import gcd, inf
from typing import NamedTuple

from graphpipe.plans.device_memory import stage_memory
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage


def seconds_per_sample(plan: Plan, stage: int) -> float:
    """Return TPS of a stage (GraphPipe, section 3): seconds of its slowest replica per sample of the mini-batch.

    Counted are forward and backward of one micro-batch, its transfers (only the longest one if transfers overlap
    computation), and the gradient all-reduce and optimizer step spread over the mini-batch.
    """
    here, tasks = plan.stages[stage], plan.tasks_seconds(stage)
    compute = max(task.forward + task.backward for task in tasks)
    transfers = _transfer_seconds(plan, stage)
    busy = max(compute, *transfers) if plan.cluster.overlap else compute + sum(transfers)
    once = plan.gather_seconds(stage) + update_seconds(plan, stage)
    return busy / here.micro_batch + once / plan.batch_size


def update_seconds(plan: Plan, stage: int) -> float:
    """Return the seconds, once per mini-batch, of a stage's gradient all-reduce, tied gradients and optimizer step.

    The gathers of sharded weights are included, except for a gather before the first task (`Plan.gather_seconds`).
    """
    here = plan.stages[stage]

    def seconds() -> float:
        return sum_seconds(plan, stage) + plan.optimizer_seconds(stage)

    if plan.graph.shared:  # Tied gradients depend on the other stages.
        return seconds()
    return plan.cost_model.op_bytes.once(("update", here.ops, here.devices, here.state, here.tensor), seconds)


def offload_seconds(plan: Plan, stage: Stage) -> float:
    """Return the seconds in which the slowest device of a stage copies what it offloads of a micro-batch."""
    count = stage_memory(plan.cost_model, stage).offloaded * stage.micro_batch / stage.degree
    return max(copy_seconds(plan, stage, device, count) for device in stage.devices)


def copy_seconds(plan: Plan, stage: Stage, device: int, count: float) -> float:
    """Return the seconds in which a device of a stage copies bytes to where it offloads them."""
    neighbour = stage.neighbour(device)
    if neighbour is None:
        return plan.cost_model.copy_seconds(count, device)
    return plan.cost_model.transfer_seconds(count, device, neighbour)


def step_overhead_seconds(plan: Plan) -> float:
    """Return the seconds of a step with a flush besides its tasks, messages and updates; 0 without training."""
    return plan.costs.step_overhead_seconds if plan.trains else 0.0


def sum_seconds(plan: Plan, stage: int) -> float:
    """Return the seconds, once per mini-batch, in which a stage's gradients and its tied gradients are summed."""
    tied = sum(plan.tied_gradients_seconds(gradients) for gradients in plan.tied_gradients if stage in gradients.stages)
    return plan.reduce_seconds(stage) + tied


def _transfer_seconds(plan: Plan, stage: int) -> list[float]:
    """Return the seconds per micro-batch over each edge of a stage. They count both directions if transfers occupy the
    devices and a gradient is sent back, otherwise one direction."""
    here = plan.stages[stage]
    seconds = [0.0]
    for position, edge in enumerate(plan.edges):
        if stage in (edge.source, edge.target) and edge.bytes_per_sample:
            other = plan.stages[edge.target if edge.source == stage else edge.source]
            share = here.micro_batch / min(here.degree, other.degree)
            back = not plan.cluster.overlap and position in plan.gradient_edges
            sent = (
                plan.sent_bytes(position, plan.joint_edges.without(position, backward=False), backward=backward)
                for backward in ((False, True) if back else (False,))
            )
            ends = here.devices[:1], other.devices
            seconds.append(sum(plan.cost_model.slowest_transfer_seconds(count * share, *ends) for count in sent))
    return seconds


def bottleneck_seconds(plan: Plan) -> float:
    """Return the most seconds per sample of any device: the published objective."""
    load: dict[int, float] = {}
    for position, stage in enumerate(plan.stages):
        for device in stage.devices:
            load[device] = load.get(device, 0.0) + seconds_per_sample(plan, position)
    return max(load.values())


def estimated_step_seconds(plan: Plan) -> float:
    """Return the step time in closed form: the longest path of stages once, then the slowest device for the rest.

        T = max over stage paths of sum b TPS  +  max over devices of sum (B - b) TPS

    The authors' published dumps print T = B TPS_max + m sum TPS, which counts the bottleneck's first micro-batch
    twice. That would rank a shallow plan with large micro-batches behind a deep plan that is slower.
    """
    rates = [seconds_per_sample(plan, stage) for stage in range(len(plan.stages))]
    longest = [0.0] * len(plan.stages)
    rest: dict[int, float] = {}
    for number, stage in enumerate(plan.stages):
        own = stage.micro_batch * rates[number]
        longest[number] = own + max((longest[other] for other in plan.predecessors[number]), default=0.0)
        for device in stage.devices:
            rest[device] = rest.get(device, 0.0) + (plan.batch_size - stage.micro_batch) * rates[number]
    return max(rest.values()) + max(longest)


class TaskBounds(NamedTuple):
    """The seconds of one micro-batch at a stage."""

    forward: float
    """Seconds of a forward on the fastest device, which the next two fields also count on."""
    backward: float
    input_gradient: float
    both: float
    """Seconds of forward and backward on the slowest device."""
    both_without_weights: float
    """Seconds of forward and backward on the slowest device, without the gradients of the weights."""


def task_bounds(plan: Plan, number: int) -> TaskBounds:
    """Return the seconds of a stage, computed once: most stages of a plan are stages of many others."""
    stage = plan.stages[number]

    def bounds() -> TaskBounds:
        tasks = plan.tasks_seconds(number)
        return TaskBounds(
            forward=min(task.forward for task in tasks),
            backward=min(task.backward for task in tasks),
            input_gradient=min(task.input_gradient for task in tasks),
            both=max(task.forward + task.backward for task in tasks),
            both_without_weights=max(task.forward + task.input_gradient for task in tasks),
        )

    key = ("tasks", stage.ops, stage.devices, stage.micro_batch, stage.recompute, stage.state, stage.tensor)
    return plan.cost_model.op_bytes.once(key, bounds)


def least_step_seconds(plan: Plan, *, whole_backwards: bool = False) -> float:
    """Return a lower bound on the step seconds of a plan's stages under any schedule.

    A stage starts when the first micro-batch has passed the longest path to it. It then does all its own work (a short
    last micro-batch counts as nothing) and updates its weights. After its last input gradient, the longest path back
    follows, in parallel with its weight gradients. A device that hosts several stages does the work of all of them
    (`_least_seconds_of_devices`).

    Args:
        plan: a sound plan.
        whole_backwards: only schedules that do not split backwards. Weight gradients are then on the path back.
    """
    before, after, least = [0.0] * len(plan.stages), [0.0] * len(plan.stages), 0.0
    arrivals: list[float] = []
    feeding, back = hops(plan)
    for stage, here in enumerate(plan.stages):
        tasks, count = task_bounds(plan, stage), plan.batch_size // here.micro_batch
        arrival = max([plan.gather_seconds(stage), *[before[other] + message for other, message in feeding[stage]]])
        leaving = max([after[other] + message for other, message in back[stage]], default=0.0)
        until_last = count * (tasks.both if whole_backwards else tasks.both_without_weights)
        least = max(least, arrival + max(count * tasks.both + update_seconds(plan, stage), until_last + leaving))
        before[stage] = arrival + tasks.forward
        after[stage] = leaving + (tasks.backward if whole_backwards else tasks.input_gradient)
        arrivals.append(arrival)
    return max(least, _least_seconds_of_devices(plan, arrivals)) if plan.shares_devices else least


def _least_seconds_of_devices(plan: Plan, arrivals: Sequence[float]) -> float:
    """Return when a device can have updated its weights at the earliest, for the last one.

    A device starts with one of its stages, and does the work of all. Then it sums the gradients of the stage that ends
    last, and updates the weights of all.

    Args:
        plan: a sound plan.
        arrivals: by stage: the earliest time at which its first micro-batch is there.
    """
    begin, work, last = dict[int, float](), dict[int, float](), dict[int, float]()
    devices = plan.cluster.devices
    for number, stage in enumerate(plan.stages):
        summed, updated = plan.reduce_seconds(number), plan.optimizer_seconds(number)
        busy = dict[str, float]()
        for device in stage.devices:
            kind = devices[device].type
            if kind not in busy:
                task = plan.task_seconds(number, device)
                busy[kind] = plan.batch_size // stage.micro_batch * (task.forward + task.backward) + updated
            begin[device] = min(begin.get(device, inf), arrivals[number])
            work[device] = work.get(device, 0.0) + busy[kind]
            last[device] = min(last.get(device, inf), summed)
    return max(begin[device] + work[device] + last[device] for device in work)


def hops(plan: Plan) -> tuple[list[list[tuple[int, float]]], list[list[tuple[int, float]]]]:
    """Return, by stage, the stages that feed it and that send it gradients, with the least seconds of a message."""
    feeding: list[list[tuple[int, float]]] = [[] for _ in plan.stages]
    back: list[list[tuple[int, float]]] = [[] for _ in plan.stages]
    least, own = plan.cost_model.fastest_transfer_seconds, [stage.micro_batch // stage.degree for stage in plan.stages]
    for position, edge in enumerate(plan.edges):
        source, target = plan.stages[edge.source].devices, plan.stages[edge.target].devices
        # Every message carries at least the greatest common divisor of the samples per replica on both sides.
        samples = gcd(own[edge.source], own[edge.target])
        seconds = least(edge.bytes_per_sample * samples, source, target)
        feeding[edge.target].append((edge.source, seconds))  # all values, even those that come along another edge
        if position in plan.gradient_edges:
            without = plan.joint_edges.without(position, backward=True)
            if without or plan.one_way_bytes[position]:
                sent = plan.sent_bytes(position, without, backward=True) * samples
                seconds = least(sent, source, target) if sent else 0
            back[edge.target].append((edge.source, seconds))
    return feeding, back


def period_seconds(plan: Plan) -> float:
    """Return the seconds per mini-batch of a full pipeline: those of its busiest device, node or link.

    A device computes its stages and handles their messages. If transfers do not overlap computation, they take both of
    their devices too. A node whose devices share cores is busy with all of their work. Only one transfer at a time goes
    from one device to another. All transfers of a device share its port in each direction where a link is shared.
    """
    devices = dict.fromkeys(plan.used_devices, 0.0)
    links: dict[tuple[int, int], float] = {}
    ports: dict[tuple[int, str, bool], float] = {}
    for number, stage in enumerate(plan.stages):
        for device in stage.devices:
            seconds = plan.costs_of(number).task_seconds(stage.ops, device, stage.micro_batch / stage.degree).forward
            devices[device] += plan.micro_batches(number) * seconds
    for position, edge in enumerate(plan.edges):
        source, target = plan.stages[edge.source], plan.stages[edge.target]
        count = plan.sent_bytes(position, plan.joint_edges.without(position, backward=False))
        # Every pair of replicas exchanges its share of the samples, in as many messages as the smaller micro-batches.
        messages = plan.batch_size / min(source.micro_batch, target.micro_batch)
        share = count * min(source.micro_batch, target.micro_batch) / max(source.degree, target.degree)
        for one in source.devices:
            for other in target.devices:
                if one == other or not count:
                    continue
                fewer = min(source.degree, target.degree)
                sent = messages * plan.cost_model.transfer_seconds(share, one, other) / fewer
                links[one, other] = links.get((one, other), 0.0) + sent
                if level := plan.cluster.port(one, other):
                    moved = messages * share / fewer * plan.cluster.seconds_per_byte(one, other)
                    for port in ((one, level, True), (other, level, False)):
                        ports[port] = ports.get(port, 0.0) + moved
                for end in (one, other):
                    devices[end] += messages * plan.cost_model.message_seconds(share / fewer, one, other)
                    devices[end] += 0.0 if plan.cluster.overlap else sent
    nodes: dict[str, float] = {}
    for device, busy in devices.items():
        node = plan.cluster.devices[device].node
        nodes[node] = nodes.get(node, 0.0) + busy / (plan.cluster.cores_per_node or float("inf"))
    return max(*devices.values(), *nodes.values(), *links.values(), *ports.values(), 0.0)


def task_count(plan: Plan) -> int:
    """Return the tasks of a step on one replica of each stage, if backwards are split."""
    return 3 * sum(map(plan.micro_batches, range(len(plan.stages))))


def replica_task_count(plan: Plan) -> int:
    """Return the tasks of a step on all replicas of all stages, if backwards are split."""
    return 3 * sum(plan.micro_batches(number) * stage.degree for number, stage in enumerate(plan.stages))
