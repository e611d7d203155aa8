"""Plans around devices that have become slow: a device at a third of its speed is a device of another type."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.plans import Plan
from graphpipe.simulator import predict
from graphpipe.units import format_seconds


def slowed(cluster: Cluster, costs: CostTable, slowness: Mapping[str, float]) -> tuple[Cluster, CostTable]:
    """Return a cluster and its costs in which some devices compute several times as long.

    Args:
        cluster: of the devices.
        costs: on the types of its devices.
        slowness: how many times as long each slow device computes, by its name. Other names are ignored.
    """
    kinds, rows, devices = [*cluster.device_types], [*costs.rows], [*cluster.devices]
    known = {kind.name for kind in kinds}
    for place, device in enumerate(devices):
        times = slowness.get(device.name)
        if times is None:
            continue
        name = f"{device.type}, {times:.3g} times as slow"
        devices[place] = replace(device, type=name)
        if name in known:
            continue
        known.add(name)
        kind = cluster.types[device.type]
        kinds.append(
            replace(
                kind,
                name=name,
                peak_flops_per_second=kind.peak_flops_per_second / times,
                bf16_peak_flops_per_second=_slower(kind.bf16_peak_flops_per_second, times),
                fp16_peak_flops_per_second=_slower(kind.fp16_peak_flops_per_second, times),
                fp8_peak_flops_per_second=_slower(kind.fp8_peak_flops_per_second, times),
                memory_bytes_per_second=kind.memory_bytes_per_second / times,
                launch_seconds=kind.launch_seconds * times,
            )
        )
        rows += [replace(row.times(times), device_type=name) for row in costs.rows if row.device_type == device.type]
    found = replace(cluster, device_types=tuple(kinds), devices=tuple(devices))
    return found, replace(costs, rows=tuple(rows))


def _slower(peak: float | None, times: float) -> float | None:
    return None if peak is None else peak / times


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan around slow devices, and what it would gain."""

    plan: Plan
    share: float
    """Of the time of a step that it saves, predicted."""
    saved_seconds: float
    """In the steps that are left after the next checkpoint."""
    restart_seconds: float
    """That starting the ranks again takes, as they took at first."""
    steps_left: int

    @property
    def gains(self) -> bool:
        """Whether it saves more than it costs."""
        return self.saved_seconds > self.restart_seconds

    def __str__(self) -> str:
        """Return the sentence that says what is done, and why."""
        saved, restart = format_seconds(self.saved_seconds), format_seconds(self.restart_seconds)
        where = f"{len(self.plan.stages)} stages on {len(self.plan.used_devices)} devices"
        compared = f"save {saved} in the {self.steps_left} steps that are left, and a restart takes {restart}"
        if self.gains:
            return f"planned around it: {where} will {compared}, so the ranks leave at the next checkpoint"
        return f"a plan around it ({where}) would {compared}, so the run stays as it is"


def propose(
    plan: Plan,
    slowness: Mapping[str, float],
    replan: Callable[[Cluster, CostTable], Plan],
    *,
    step_seconds: float,
    steps_left: int,
    restart_seconds: float,
) -> Proposal | None:
    """Return the faster of two plans: one that gives slow devices less work, and one without them.

    Measured seconds of a step are scaled by predictions, because the costs of the plan may be estimates.

    Args:
        plan: that is run.
        slowness: how many times as long each slow device computes, by its name.
        replan: plans for a cluster with these costs.
        step_seconds: measured, with the slow devices.
        steps_left: after the next checkpoint.
        restart_seconds: to start the ranks again.

    Returns:
        None if neither is possible.
    """
    cluster, costs = slowed(plan.cluster, plan.costs, slowness)
    present = predict(replace(plan, cluster=cluster, costs=costs, prediction=None)).mini_batch_seconds
    others = [device.name for device in cluster.devices if device.name not in slowness]
    found: list[Plan] = []
    for names in ([device.name for device in cluster.devices], others):
        try:
            if names:
                found.append(replan(cluster.only(names), costs))
        except (Infeasible, InvalidInput):
            continue
    if not found:
        return None
    best = min(found, key=_seconds)
    share = max(0.0, 1 - _seconds(best) / present)
    return Proposal(
        plan=best,
        share=share,
        saved_seconds=share * step_seconds * steps_left,
        restart_seconds=restart_seconds,
        steps_left=steps_left,
    )


def _seconds(plan: Plan) -> float:
    return (plan.prediction or predict(plan)).mini_batch_seconds
