"""`exo`: the layers of every node as exo's pipeline shards, half-open intervals of a list of equal layers.

    operators   embed  layers.0.*  layers.1.* | layers.2.*  head
    shards      rank 0: [0, 2)                  rank 1: [2, 3)

References:
    exo, src/exo/shared/types/worker/shards.py (`PipelineShardMetadata`) and runners.py (`ShardAssignments`), 2026. What
    only a running cluster knows (the model's card, runner ids, node ids) is left to exo; nodes have our devices' names.
"""

import json
import re
from collections import defaultdict

from graphpipe.errors import InvalidInput
from graphpipe.exporters.exporter import Exported, Exporter
from graphpipe.plans import Plan

_LAYER = re.compile(r"^(?P<list>(?:.*?\.)??(?:[^.\d][^.]*))\.(?P<number>\d+)(?:\.|$)")
_REMEDY = "exo runs chains of whole layers. Plan with --planner edgepipe --inference, or use --format layers."


def write_exo(plan: Plan) -> Exported:
    """Return the shards of a chain of stages, each with whole layers on one device.

    Raises:
        InvalidInput: the stages are not a chain of single devices, or a layer is on two of them.
    """
    for number, stage in enumerate(plan.stages):
        if plan.successors[number] not in ((), (number + 1,)) or len(stage.devices) > 1:
            raise InvalidInput(f"stage '{stage.name}' is not part of a chain of single devices", remedy=_REMEDY)
    if len(plan.used_devices) < len(plan.stages):
        raise InvalidInput("a device has several stages", where="plan", remedy=_REMEDY)
    places = layer_places(plan)
    world, layers = len(plan.stages), len(places)
    shards = []
    for number, stage in enumerate(plan.stages):
        own = [layer for layer, place in enumerate(places) if place == number]
        first = own[0] if own else (0 if not number else layers)
        interval = {"start_layer": first, "end_layer": first + len(own), "n_layers": layers}
        shard = {"device_rank": number, "world_size": world} | interval
        shards.append(
            {"node_id": plan.cluster.devices[stage.devices[0]].name, "shard": {"PipelineShardMetadata": shard}}
        )
    body = {"model_id": plan.graph.name, "shards": shards, "primary_output_node": world - 1}
    return Exported(text=json.dumps(body, indent=1) + "\n")


def layer_places(plan: Plan) -> list[int]:
    """Return the stage of every layer of the model's longest list of layers.

    Raises:
        InvalidInput: the model has no such list, or a layer is in two stages.
    """
    lists: defaultdict[str, dict[int, set[int]]] = defaultdict(dict)
    for number, stage in enumerate(plan.stages):
        for op in stage.ops:
            if match := _LAYER.match(op):
                lists[match["list"]].setdefault(int(match["number"]), set()).add(number)
    name, layers = max(lists.items(), key=lambda entry: len(entry[1]), default=("", dict[int, set[int]]()))
    if len(layers) < 2:
        raise InvalidInput("has no list of layers", where=f"model '{plan.graph.name}'", remedy=_REMEDY)
    for layer, stages in sorted(layers.items()):
        if len(stages) > 1:
            names = " and ".join(f"'{plan.stages[number].name}'" for number in sorted(stages))
            raise InvalidInput(f"layer {name}.{layer} is in stages {names}", where="plan", remedy=_REMEDY)
    places = [min(layers[layer]) for layer in sorted(layers)]
    if places != sorted(places):
        raise InvalidInput(f"the layers of {name} are not in order", where="plan", remedy=_REMEDY)
    return places


EXO = Exporter(name="exo", summary="exo's pipeline shards", write=write_exo)
