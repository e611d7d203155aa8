"""Closed forms over a finished plan: bottleneck, step time, and memory per device."""

from math import gcd

from graphpipe.plans.plan import Plan


def seconds_per_sample(plan: Plan, stage: int) -> float:
    """Return TPS of a stage (GraphPipe, section 3): seconds of its slowest replica per sample of the mini-batch.

    Forward and backward of one micro-batch, its transfers where they do not overlap computation (the longest one
    where they do), and the gradient all-reduce and optimizer step spread over the mini-batch.
    """
    costs, here = plan.cost_model, plan.stages[stage]
    samples = here.micro_batch / here.degree
    tasks = costs.tasks_seconds(here.ops, here.devices, samples, here.recompute)
    compute = max(task.forward + task.backward for task in tasks)
    transfers = _transfer_seconds(plan, stage)
    busy = max(compute, *transfers) if plan.cluster.overlap else compute + sum(transfers)
    return busy / here.micro_batch + update_seconds(plan, stage) / plan.batch_size


def update_seconds(plan: Plan, stage: int) -> float:
    """Return the seconds, once per mini-batch, of a stage's gradient all-reduce, exchanges and optimizer step."""
    exchanged = sum(plan.exchange_seconds(each) for each in plan.exchanges if stage in each.stages)
    return plan.reduce_seconds(stage) + exchanged + plan.cost_model.optimizer_seconds(plan.stages[stage].ops)


def _transfer_seconds(plan: Plan, stage: int) -> list[float]:
    """Seconds per micro-batch of one way over each edge of a stage; both ways where they cost compute time
    and a gradient comes back."""
    here = plan.stages[stage]
    found = [0.0]
    for position, edge in enumerate(plan.edges):
        if stage in (edge.source, edge.target) and edge.bytes_per_sample:
            other = plan.stages[edge.target if edge.source == stage else edge.source]
            count = edge.bytes_per_sample * here.micro_batch / min(here.degree, other.degree)
            way = plan.cost_model.slowest_transfer_seconds(count, here.devices[:1], other.devices)
            ways = 1 if plan.cluster.overlap or position not in plan.gradient_edges else 2
            found.append(ways * way)
    return found


def bottleneck_seconds(plan: Plan) -> float:
    """Return the largest seconds per sample over devices: the published objective."""
    load: dict[int, float] = {}
    for position, stage in enumerate(plan.stages):
        for device in stage.devices:
            load[device] = load.get(device, 0.0) + seconds_per_sample(plan, position)
    return max(load.values())


def estimated_step_seconds(plan: Plan) -> float:
    """Return the step time in closed form: the longest path of stages once, and the slowest device for the rest.

        T = max over stage paths of sum b TPS  +  max over devices of sum (B - b) TPS

    The authors' published dumps print T = B TPS_max + m sum TPS, which counts the bottleneck's first micro-batch
    twice; that would rank a shallow plan of large micro-batches behind a deep one that is slower.
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


def least_step_seconds(plan: Plan, *, whole_backwards: bool = False) -> float:
    """Return seconds below which no schedule of a plan's stages can take its step.

    A stage begins when the first micro-batch has come forwards through the longest way to it, then has all its own
    work to do, and its weights to update; and after its last input gradient the longest way back is still to go,
    beside its weight gradients.

    Args:
        plan: any.
        whole_backwards: no schedule that splits them: the weight gradients lie on the way back.
    """
    costs, batch = plan.cost_model, plan.batch_size
    before, after, least = [0.0] * len(plan.stages), [0.0] * len(plan.stages), 0.0
    feeding, back = _hops(plan)
    for stage, here in enumerate(plan.stages):
        samples = here.micro_batch / here.degree
        tasks = costs.tasks_seconds(here.ops, here.devices, samples, here.recompute)
        arrival = max((before[other] + message for other, message in feeding[stage]), default=0.0)
        leaving = max((after[other] + message for other, message in back[stage]), default=0.0)
        count = batch // here.micro_batch
        work = count * max(task.forward + task.backward for task in tasks)
        backs = [task.backward if whole_backwards else task.input_gradient for task in tasks]
        until_last = count * max(task.forward + back for task, back in zip(tasks, backs, strict=True))
        least = max(least, arrival + max(work + update_seconds(plan, stage), until_last + leaving))
        before[stage] = arrival + min(task.forward for task in tasks)
        after[stage] = leaving + min(backs)
    return least


def _hops(plan: Plan) -> tuple[list[list[tuple[int, float]]], list[list[tuple[int, float]]]]:
    """Which stages feed each stage, to which it sends gradients, and the least seconds of a message between them."""
    feeding: list[list[tuple[int, float]]] = [[] for _ in plan.stages]
    back: list[list[tuple[int, float]]] = [[] for _ in plan.stages]
    for position, edge in enumerate(plan.edges):
        source, target = plan.stages[edge.source], plan.stages[edge.target]
        # No message carries less than what divides the shares of both sides.
        samples = gcd(source.micro_batch // source.degree, target.micro_batch // target.degree)
        count = edge.bytes_per_sample * samples
        seconds = plan.cost_model.fastest_transfer_seconds(count, source.devices, target.devices)
        feeding[edge.target].append((edge.source, seconds))
        if position in plan.gradient_edges:
            back[edge.target].append((edge.source, seconds))
    return feeding, back


def needed_bytes(plan: Plan) -> dict[int, float]:
    """Return the bytes that the stages of each device in use need with all their samples in flight.

    Of what the stages of a device compute again, or hold only while they run, it needs the largest alone: it does one
    task at a time. Messages on their way are not counted.
    """
    costs = plan.cost_model
    kept, again = dict.fromkeys(plan.used_devices, 0.0), dict.fromkeys(plan.used_devices, 0.0)
    for stage in plan.stages:
        flying = costs.activation_bytes(stage.ops, stage.recompute) * stage.in_flight / stage.degree
        samples = stage.micro_batch / stage.degree
        once = costs.recomputed_bytes(stage.ops, stage.recompute) * samples
        once += float(costs.temporary_bytes(samples)[costs.positions(stage.ops)].max())
        for device in stage.devices:
            kept[device] += costs.state_bytes(stage.ops) + flying
            again[device] = max(again[device], once)
    return {device: kept[device] + again[device] for device in kept}


def memory_shortfall(plan: Plan) -> float:
    """Return how many bytes the fullest device lacks (negative: has to spare)."""
    needs = needed_bytes(plan)
    capacity = {device: plan.cluster.types[plan.cluster.devices[device].type].memory_bytes for device in needs}
    return max(needs[device] - capacity[device] for device in needs)
