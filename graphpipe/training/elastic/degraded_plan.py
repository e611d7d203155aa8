"""The same stages without the devices that are lost: the other replicas of a stage take over the samples."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.graph import ParameterSlice
from graphpipe.plans import Plan, Stage
from graphpipe.plans.verify import verify
from graphpipe.run.weights.registry import DEFAULT_SYNC
from graphpipe.simulator import predict
from graphpipe.training.config.settings import TrainConfig


def without_devices(plan: Plan, lost: Collection[str]) -> Plan | None:
    """Return a plan of the same stages without some devices, with its prediction, as ReCycle reroutes micro-batches.

    Gandhi et al., ReCycle: Resilient Training of Large DNNs using Pipeline Adaptation (SOSP 2024).

    Args:
        plan: that was run.
        lost: names of devices.

    Returns:
        None if a stage has no other replica, its micro-batch does not split over those that are left, they do not
        have the memory, or what one of them offloads rested on a lost device.
    """
    names = [device.name for device in plan.cluster.devices]
    left = [name for name in names if name not in lost]
    position = {names.index(name): number for number, name in enumerate(left)}
    stages = [_on_devices(stage, position) for stage in plan.stages]
    if any(stage is None for stage in stages):
        return None
    found = replace(
        plan,
        cluster=plan.cluster.only(left),
        stages=tuple(stage for stage in stages if stage),
        search_seconds=0.0,
        prediction=None,
    )
    try:
        verify(found)
    except (InvalidInput, Infeasible):
        return None
    return replace(found, prediction=predict(found))


def _on_devices(stage: Stage, position: Mapping[int, int]) -> Stage | None:
    """Return the stage on the devices that are left, at their new positions; None if that is impossible."""
    whole = (replica for replica in stage.replicas if all(device in position for device in replica))
    devices = [device for replica in whole for device in replica]
    neighbours = [stage.neighbour(device) for device in devices]
    if not devices or not {None, *position}.issuperset(neighbours):
        return None
    return replace(
        stage,
        devices=tuple(position[device] for device in devices),
        offload_to=tuple(position[each] for each in neighbours if each is not None),
    )


def why_not_reroute(config: TrainConfig, plan: Plan) -> str:
    """Return why the replicas of a run could not take over samples in the midst of a training. Empty if they can.

    Args:
        config: of the training.
        plan: that is run.
    """
    if plan.weights != "flush":
        return f"weights change within a segment under the policy '{plan.weights}'"
    if config.train.engine != DEFAULT_SYNC:
        return f"engine '{config.train.engine}' may keep state of a lost rank"
    if plan.shares_replicas:
        return "devices share replicas, so the lost rank had a part of one"
    if config.train.shard_optimizer or plan.shards_state:
        return "the lost rank had a part of the optimizer's state"
    if any(ParameterSlice.parse(name) for op in plan.graph.ops for name in op.parameters):
        return "the plan splits layers"
    alone = {device for stage in plan.stages if stage.degree == 1 for device in stage.devices}
    if alone.issuperset(plan.used_devices):
        return "every device hosts a stage that has no other replica"
    return ""
