"""LayerPipe: places the forward, the input gradient and the weight gradient of every layer on any device.

PipeDream's stages do all three, so the slowest stage decides. Tasks of a third of the work balance better:

    layers of work 6, 3, 6, 3 on 3 devices     stages: 6 | 3 6 | 3, period 9     tasks: 2 2 2 | 2 2 1 1 | 2 1 1 1 1, 6

References:
    Unnikrishnan and Parhi: LayerPipe: accelerating deep neural network training by intra-layer and inter-layer gradient
    pipelining and multiprocessor scheduling. ICCAD 2021.
    Graham: Bounds on multiprocessing timing anomalies. SIAM J. Appl. Math. 1969 (longest processing time first).
"""

from collections.abc import Iterator, Mapping
from math import inf
from operator import itemgetter
from typing import Literal

from graphpipe.errors import Infeasible
from graphpipe.plans import Plan
from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTask, LayerTasks
from graphpipe.schedule.gradient_tasks.rounds import Rounds
from graphpipe.schedule.gradient_tasks.verify_rounds import verify_rounds
from graphpipe.simulator.round_seconds import round_seconds

_LEAST_GAIN = 1e-9
_MOST_CHANGES = 200


def place_gradients(plan: Plan, weights: Literal["flush", "stash"] = "stash") -> Rounds:
    """Return the fastest placement of the tasks of a plan's layers on the plan's devices.

    Candidates are the plan's own stages, the longest tasks first, and small changes of both, for single layers and for
    whole stages as layers. The simulated period decides among those that fit in memory.

    Args:
        plan: that trains. A layer is an operator with weights, and the operators without weights behind it.
        weights: `stash` updates weights without a flush, late. `flush` waits for the end of every mini-batch.

    Raises:
        Infeasible: no placement fits in memory.
        InvalidInput: the plan does not train.
    """
    plan.require_training()
    placements = [*_candidates(plan, weights)]
    fitting = [each for each in placements if _lacking(each) <= 0]
    if not fitting:
        missing = min(map(_lacking, placements))
        what = f"no placement of the tasks of '{plan.graph.name}' fits: {missing:.0f} bytes are missing"
        raise Infeasible(what, remedy="Use more devices, devices with more memory, or a smaller micro-batch.")
    seconds, best = inf, fitting[0]
    for rounds in sorted(fitting, key=_busiest_seconds):
        if _busiest_seconds(rounds) < seconds and (period := round_seconds(rounds)) < seconds:
            seconds, best = period, rounds
    verify_rounds(best)
    return best


def _candidates(plan: Plan, weights: Literal["flush", "stash"]) -> Iterator[Rounds]:
    micro_batch = min(stage.micro_batch for stage in plan.stages)
    for layers in dict.fromkeys((layers_of(plan), tuple(stage.ops for stage in plan.stages))):
        work = LayerTasks.of(plan.cost_model, layers, micro_batch, plan.batch_size)
        for placement in (own_devices(work, plan), longest_first(work, plan.used_devices)):
            for changed in (placement, exchanged(work, placement, plan.used_devices)):
                yield Rounds(work=work, device_of=changed, weights=weights, plan=plan)


def layers_of(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Return the layers of a plan's graph: what has weights, with the operators behind it that have none.

    An operator without weights joins the layer before it if it reads from no other, and none but it reads that one.
    """
    graph, held = plan.graph, plan.cost_model.parameter_bytes
    layers: list[list[str]] = []
    home: dict[str, int] = {}
    for name in graph.order:
        before, seconds = graph.predecessors[name], plan.cost_model.task_seconds((name,), plan.used_devices[0], 1.0)
        bare = not held.weights((name,)) and not seconds.weight_gradient
        if bare and len(before) == 1 and len(graph.successors[before[0]]) == 1:
            home[name] = home[before[0]]
            layers[home[name]].append(name)
        else:
            home[name] = len(layers)
            layers.append([name])
    return tuple(map(tuple, layers))


def own_devices(work: LayerTasks, plan: Plan) -> dict[LayerTask, int]:
    """Return the placement of the plan: each layer on the first device of the stage of its first operator."""
    home = {op: stage.devices[0] for stage in plan.stages for op in stage.ops}
    return {task: home[work.layers[task.layer][0]] for task in work.tasks}


def longest_first(work: LayerTasks, devices: tuple[int, ...]) -> dict[LayerTask, int]:
    """Return a placement: the longest task first, each on the device where it ends first (Graham, 1969)."""
    load, placement = dict.fromkeys(devices, 0.0), dict[LayerTask, int]()
    for task in sorted(work.tasks, key=lambda task: -work.mean_seconds(task, devices[0])):
        placement[task] = min(devices, key=lambda device: load[device] + work.mean_seconds(task, device))
        load[placement[task]] += work.mean_seconds(task, placement[task])
    return placement


def exchanged(work: LayerTasks, placement: Mapping[LayerTask, int], devices: tuple[int, ...]) -> dict[LayerTask, int]:
    """Return a placement with a lower load: tasks of the busiest device move, or are exchanged, while that helps."""
    improved, load = dict(placement), dict.fromkeys(devices, 0.0)
    for task, device in improved.items():
        load[device] += work.mean_seconds(task, device)
    for _ in range(_MOST_CHANGES):
        busiest = max(load, key=load.__getitem__)
        change = min(_changes(work, improved, load, busiest), key=itemgetter(0), default=None)
        if change is None or change[0] >= load[busiest] - _LEAST_GAIN * load[busiest]:
            break
        _, one, other, device = change
        for task, target in ((one, device), (other, busiest)):
            if task is not None:
                load[improved[task]] -= work.mean_seconds(task, improved[task])
                load[target] += work.mean_seconds(task, target)
                improved[task] = target
    return improved


def _changes(
    work: LayerTasks, placement: Mapping[LayerTask, int], load: Mapping[int, float], busiest: int
) -> Iterator[tuple[float, LayerTask, LayerTask | None, int]]:
    # The larger load of the two devices, the task that leaves, the one that comes, and the other device.
    leaving = [task for task, device in placement.items() if device == busiest]
    for device in load.keys() - {busiest}:
        coming = [None, *(task for task, at in placement.items() if at == device)]
        for one in leaving:
            for other in coming:
                here = load[busiest] - work.mean_seconds(one, busiest) + _seconds(work, other, busiest)
                there = load[device] + work.mean_seconds(one, device) - _seconds(work, other, device)
                yield max(here, there), one, other, device


def _seconds(work: LayerTasks, task: LayerTask | None, device: int) -> float:
    return work.mean_seconds(task, device) if task is not None else 0.0


def _busiest_seconds(rounds: Rounds) -> float:
    return max(map(rounds.seconds, rounds.orders))


def _lacking(rounds: Rounds) -> float:
    cluster = rounds.work.model.cluster
    return max(rounds.memory_bytes(device) - cluster.type_of(device).memory_bytes for device in rounds.orders)
