"""`layers`: what every device computes, as plain JSON that any tool can read.

{"model": "gpt", "micro_batch": 4, "hosts": [
  {"device": "node0/gpu-0", "node": "node0", "stages": [{"name": "s0", "operators": [...], "feeds": ["s1"]}]}
]}
"""

import json
from typing import Any

from graphpipe.exporters.exporter import Exported, Exporter
from graphpipe.plans import Plan


def write_layers(plan: Plan) -> Exported:
    """Return the stages of every device in use, in the order of the cluster."""
    body = {
        "model": plan.graph.name,
        "mini_batch": plan.batch_size,
        "schedule": plan.schedule,
        "trains": plan.trains,
        "hosts": [_host(plan, device) for device in sorted(plan.used_devices)],
    }
    return Exported(text=json.dumps(body, indent=1) + "\n")


def _host(plan: Plan, device: int) -> dict[str, Any]:
    here = plan.cluster.devices[device]
    stages = [number for number, stage in enumerate(plan.stages) if device in stage.devices]
    return {
        "device": here.name,
        "node": here.node,
        "type": here.type,
        "stages": [_stage(plan, number, device) for number in stages],
    }


def _stage(plan: Plan, number: int, device: int) -> dict[str, Any]:
    stage = plan.stages[number]
    return {
        "name": stage.name,
        "operators": list(stage.ops),
        "parameters": sorted({name for op in stage.ops for name in plan.graph[op].parameters}),
        "micro_batch": stage.micro_batch,
        "replica": stage.replica_of(device),
        "replicas": stage.degree,
        **({} if stage.tensor == 1 else {"rank": stage.devices.index(device) % stage.tensor, "ranks": stage.tensor}),
        "feeds": [plan.stages[other].name for other in plan.successors[number]],
    }


LAYERS = Exporter(name="layers", summary="plain JSON of the operators of every device", write=write_layers)
