"""The verifier of plans, its part on memory: every byte derived again, from graph, cluster and cost table alone."""

from graphpipe.costs import Temporaries
from graphpipe.errors import Infeasible
from graphpipe.plans.plan import Plan, Stage
from graphpipe.units import format_bytes

RELATIVE = 1e-6
"""By so much two figures may differ."""


def check_memory(plan: Plan) -> None:
    """Check that the stages of every device fit.

    Raises:
        Infeasible: they need more than it has; says how many bytes short.
    """
    needs: dict[int, list[tuple[float, str]]] = {}
    again: dict[int, float] = {}
    for stage in plan.stages:
        need, once = _stage_bytes(plan, stage)
        for device in stage.devices:
            needs.setdefault(device, []).append((need, stage.name))
            again[device] = max(again.get(device, 0.0), once)
    for device, items in sorted(needs.items()):
        total = sum(need for need, _ in items) + again[device]
        capacity = plan.cluster.types[plan.cluster.devices[device].type].memory_bytes
        if total > capacity * (1 + RELATIVE):
            names = " and ".join(f"'{name}'" for _, name in sorted(items, reverse=True))
            raise Infeasible(
                f"stage {names} needs {format_bytes(total)} on device '{plan.cluster.devices[device].name}', "
                f"which has {format_bytes(capacity)}: {format_bytes(total - capacity)} ({total - capacity:.0f} bytes) "
                "short",
                remedy="Use more devices, a smaller micro-batch, recomputation, or devices with more memory.",
            )


def _stage_bytes(plan: Plan, stage: Stage) -> tuple[float, float]:
    """Bytes on each device: with all samples in flight, and what a task holds of one micro-batch only while it runs."""
    inside = set(stage.ops)
    weights = saved = 0.0
    shared = {each.name: each.bytes for each in plan.graph.shared if each.trainable}
    seen: set[str] = set()
    for op in plan.graph.ops:
        if op.name in inside:
            factor = plan.costs.state_bytes_per_parameter_byte if op.trainable else 1.0
            weights += factor * op.parameter_bytes
            saved += _saved_bytes(plan, op.name)
            # A stage has one copy of what its operators share.
            weights -= factor * sum(shared[name] for name in op.parameters if name in shared and name in seen)
            seen.update(op.parameters)
    received: dict[str, float] = {}
    for edge in plan.graph.edges:
        if edge.target in inside and edge.source not in inside:
            received[edge.source] = max(received.get(edge.source, 0.0), edge.bytes_per_sample)
    again = 0.0
    if stage.recompute == "full":
        saved, again = 0.0, saved
    elif stage.recompute != "none":
        saved = sum(_kept_bytes(plan, name, inside, stage.recompute) for name in stage.ops)
        again = max((_saved_under(plan, name, inside) for name in stage.recompute), default=0.0)
    replica = stage.micro_batch / stage.degree
    once = replica * again + _temporary_bytes(plan, inside, replica)
    return weights + stage.in_flight / stage.degree * (saved + sum(received.values())), once


def _temporaries(plan: Plan, op: str) -> list[Temporaries]:
    kinds = {device.type for device in plan.cluster.devices}
    rows = (plan.costs.by_op[op, kind].temporaries for kind in sorted(kinds))
    return [held for held in rows if held is not None]


def _saved_bytes(plan: Plan, op: str) -> float:
    """Bytes per sample that an operator keeps for its backward, and the loss after it for its own."""
    loss = max((held.loss_bytes_per_sample for held in _temporaries(plan, op)), default=0.0)
    return plan.graph[op].work.saved_bytes_per_sample + loss


def _temporary_bytes(plan: Plan, inside: set[str], samples: float) -> float:
    """The most bytes that one operator holds in its forward, or in its backward and of the gradient that arrives."""
    arrives = dict.fromkeys(inside, 0.0)
    for edge in plan.graph.edges:
        if edge.source in inside and edge.source in plan.graph.differentiable:
            arrives[edge.source] = max(arrives[edge.source], edge.bytes_per_sample)
    each = (
        max(held.forward(samples), held.backward(samples) + arrives[op] * samples)
        for op in inside
        for held in _temporaries(plan, op)
    )
    return max(each, default=0.0)


def _kept_bytes(plan: Plan, op: str, inside: set[str], recompute: tuple[str, ...]) -> float:
    """Bytes per sample that stay of an operator's in a stage where some submodules are recomputed."""
    saved, home = _saved_bytes(plan, op), submodule(op, recompute)
    kept = [0.0 if home else saved]
    for edge in plan.graph.edges:
        if edge.source != op:
            continue
        there = submodule(edge.target, recompute) if edge.target in inside else ""
        if home and (edge.target not in inside or (there and there != home)):
            kept.append(edge.bytes_per_sample)  # held for another stage's gradient, or to compute from again
        elif home and not there:
            kept.append(min(saved, edge.bytes_per_sample))  # saved by its reader
        elif there and not home:
            kept.append(edge.bytes_per_sample)
    return max(kept)


def _saved_under(plan: Plan, name: str, inside: set[str]) -> float:
    return sum(_saved_bytes(plan, op) for op in inside if submodule(op, (name,)))


def submodule(op: str, names: tuple[str, ...]) -> str:
    """Return which of some operators or submodules an operator is, or is in; empty if none."""
    return next((name for name in names if op == name or op.startswith(name + ".")), "")
