"""Stages for the least latency: branches of the graph side by side, several stages on a device where that helps."""

from graphlib import TopologicalSorter

import numpy as np

from graphpipe.costs import CostModel
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.plans.plan import Plan
from graphpipe.schedule.schedulers.forward_only import NAME as FORWARD_ONLY


def parallel_plan(problem: Problem, size: int, *, planner: str) -> Plan:
    """Return the plan of operators that each take the device where they end first, joined into stages.

    Operators come in the order of the longest path from them to the end (list scheduling, HEFT). An operator joins the
    last stage of its device unless the stage would then wait for more than it did, because a stage begins when
    everything that it reads has arrived.

    Args:
        problem: of inference.
        size: of a micro-batch, in samples.
        planner: its name.

    References:
        Topcuoglu, Hariri, Wu: Performance-effective and low-complexity task scheduling for heterogeneous computing.
        IEEE TPDS 13(3), 2002.
    """
    model = CostModel.of(problem.graph, problem.costs, problem.cluster, trains=False)
    stages = _Stages()
    for name, device in _placed(problem, model, size).items():
        stages.add(name, device, problem.graph.predecessors[name])
    order = list(TopologicalSorter({n: stages.before[n] for n in range(len(stages.ops))}).static_order())
    place = problem.graph.index
    parts = [Part(tuple(sorted(stages.ops[n], key=place.__getitem__)), 1, size) for n in order]
    devices = [(stages.device[n],) for n in order]
    return assemble(problem, parts, planner=planner, schedule=FORWARD_ONLY, devices=devices)


def _placed(problem: Problem, model: CostModel, size: int) -> dict[str, int]:
    """Return the device of every operator, in a topological order."""
    graph, cluster = problem.graph, problem.cluster
    devices = range(len(cluster.devices))
    seconds = {kind: model.seconds(kind, size)[0] for kind in {device.type for device in cluster.devices}}
    sent = {(edge.source, edge.target): edge.bytes_per_sample * size for edge in graph.edges}
    mean = np.mean([*seconds.values()], axis=0)
    longest: dict[str, float] = {}
    for name in reversed(graph.order):
        after = max((longest[other] for other in graph.successors[name]), default=0.0)
        longest[name] = float(mean[graph.index[name]]) + after
    rank = {name: position for position, name in enumerate(graph.order)}
    free, ends, device_of = dict.fromkeys(devices, 0.0), dict[str, float](), dict[str, int]()
    for name in sorted(graph.order, key=lambda name: (-longest[name], rank[name])):
        best: tuple[float, int] | None = None
        for device in devices:
            arrivals = (
                ends[other] + model.transfer_seconds(sent[other, name], device_of[other], device)
                for other in graph.predecessors[name]
            )
            start = max(free[device], *arrivals, 0.0)
            end = start + float(seconds[cluster.devices[device].type][graph.index[name]])
            if best is None or end < best[0]:
                best = end, device
        assert best is not None, "a cluster has devices"
        ends[name], device_of[name] = best
        free[best[1]] = best[0]
    return device_of


class _Stages:
    """Stages that operators join one after the other, in a topological order of the operators."""

    def __init__(self) -> None:
        self.ops: list[list[str]] = []
        self.device: list[int] = []
        self.before: list[set[int]] = []
        """The stages that each stage reads from."""
        self._stage_of: dict[str, int] = {}
        self._open: dict[int, int] = {}
        """The last stage of each device."""

    def add(self, name: str, device: int, predecessors: tuple[str, ...]) -> None:
        """Add an operator to the last stage of a device, or to a new one."""
        sources = {self._stage_of[other] for other in predecessors}
        stage = self._open.get(device)
        if stage is None or not (sources - {stage}) <= self.before[stage]:
            stage = self._open[device] = len(self.ops)
            self.ops.append([])
            self.device.append(device)
            self.before.append(sources)
        self.ops[stage].append(name)
        self._stage_of[name] = stage
