"""Which share of the peak of its devices a training uses: model FLOPs utilisation.

Chowdhery et al., PaLM: Scaling Language Modeling with Pathways (2022), appendix B: the operations of the model's
forward and backward over those that the devices could do. What is computed twice counts once.
"""

from statistics import harmonic_mean

from graphpipe.graph import Graph
from graphpipe.plans import Plan


def step_flops(plan: Plan) -> float:
    """Return the floating-point operations of the forwards and backwards of one mini-batch, without recomputation."""
    reached = _below_trained(plan.graph)
    halves = {op.name: 1 + (op.name in reached) + (op.trainable and bool(op.parameters)) for op in plan.graph.ops}
    return plan.batch_size * sum(op.work.flops_per_sample * halves[op.name] for op in plan.graph.ops)


def peak_flops(plan: Plan, precision: str) -> float | None:
    """Return the FLOPs per second of the devices in use, at their peak in a precision, or in those of the operators.

    None on processors, whose peak no data sheet gives, and which share their cores.
    """
    types = {kind.name: kind for kind in plan.cluster.device_types}
    used = [types[plan.cluster.devices[device].type] for device in plan.used_devices]
    if any(each.is_processor for each in used):
        return None
    flops: dict[str, float] = {}
    for op in plan.graph.ops:
        own = op.work.products or precision
        flops[own] = flops.get(own, 0.0) + op.work.flops_per_sample
    peaks = {each: sum(kind.peak(each) for kind in used) for each in flops}
    # Of several precisions the mean by operations is taken of the seconds.
    return harmonic_mean([*peaks.values()], [*flops.values()]) if len(peaks) > 1 else sum(peaks.values())


def _below_trained(graph: Graph) -> set[str]:
    # Operators whose inputs need gradients, because one before them trains.
    found: set[str] = set()
    for name in graph.order:
        before = graph.predecessors[name]
        if any(each in found or (graph[each].trainable and graph[each].parameters) for each in before):
            found.add(name)
    return found
