"""From an order per stage to an order per device."""

from collections.abc import Mapping, Sequence

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.schedule.logical_clock import Chain, Clock
from graphpipe.schedule.schedule import Schedule, Task
from graphpipe.schedule.task_numbers import TaskNumbers


def merge(name: str, plan: Plan, orders: Sequence[Sequence[Task]]) -> Schedule:
    """Return the schedule in which every stage keeps its order of tasks.

    A device that hosts one stage has that stage's order. One that hosts several interleaves them by a logical clock
    (one tick to forward a sample, two to go back): it takes what can start first, a backward before a forward, and a
    weight gradient after both.

    Args:
        name: of the schedule.
        plan: its stages' devices and sharding decide what waits for what.
        orders: the tasks of each stage, by stage.

    Raises:
        InvalidInput: no interleaving exists, because a stage may not have enough samples in flight.
    """
    hosted = {device: [s for s, stage in enumerate(plan.stages) if device in stage.devices] for device in _all(plan)}
    if all(len(stages) <= 1 for stages in hosted.values()):
        devices = [tuple(orders[stages[0]]) if stages else () for stages in hosted.values()]
        return Schedule(name=name, devices=tuple(devices))
    return Schedule(name=name, devices=_interleave(plan, orders, hosted))


def _interleave(
    plan: Plan, orders: Sequence[Sequence[Task]], hosted: dict[int, list[int]]
) -> tuple[tuple[Task, ...], ...]:
    numbers = TaskNumbers(plan, plan.batch_size)
    tasks = {numbers.number(task, d): task for d, stages in hosted.items() for s in stages for task in orders[s]}
    chains = [
        Chain(device=device, tasks=[numbers.number(task, device) for task in orders[stage]])
        for device, stages in hosted.items()
        for stage in stages
    ]
    clock = Clock(numbers.ticks(tasks))
    clock.run(chains, ((flow.source, flow.target) for flow in numbers.flows(None)))
    check_all_start(plan, clock, chains, tasks)
    devices: dict[int, list[Task]] = {device: [] for device in hosted}
    for number in clock.starts:
        devices[clock.device_of[number]].append(tasks[number])
    return tuple(tuple(devices[device]) for device in hosted)


def check_all_start(plan: Plan, clock: Clock, chains: Sequence[Chain], tasks: Mapping[int, Task]) -> None:
    """Check that no task waits for ever.

    Raises:
        InvalidInput: some do; the first of some chains are named.
    """
    heads = [next((task for task in chain.tasks if task not in clock.starts), None) for chain in chains]
    stuck = [(chain.device, tasks[task]) for chain, task in zip(chains, heads, strict=True) if task is not None]
    if stuck:
        some = ", ".join(f"{task} on {plan.cluster.devices[device].name}" for device, task in stuck[:4])
        raise InvalidInput(
            f"tasks wait for each other for ever: {some}{', ...' if len(stuck) > 4 else ''}",
            where="schedule",
            remedy="Raise the in_flight samples of the stages before those that wait.",
        )


def _all(plan: Plan) -> range:
    return range(len(plan.cluster.devices))
