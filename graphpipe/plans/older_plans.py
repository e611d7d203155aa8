"""Plan files of earlier versions, whose stages had other fields."""

from collections.abc import Iterator
from typing import Any, cast

from graphpipe.cluster.default_fields import without_default_fields
from graphpipe.costs.cost_table import without_default_loads
from graphpipe.graph.operator_graph import fingerprinted

_MEMORY_POLICY = {"keep": "none", "recompute": "full"}
"""The value of `recompute`, by the value of the older field `memory_policy`."""


def with_current_fields(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a plan file with the current fields of stages."""
    for stage in _stages(body.get("plan")):
        if "recompute" not in stage and stage.get("memory_policy") in _MEMORY_POLICY:
            stage["recompute"] = _MEMORY_POLICY[stage.pop("memory_policy")]
        if stage.get("backend") == "eager":  # its only value
            del stage["backend"]
    return body


def with_version_1_fields(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a plan as fingerprints of schema version 1 use it.

    Every stage had the backend `eager` then, replicas were single devices that did not shard anything, nothing was
    offloaded, and the pipeline drained after every mini-batch. Every plan trained. Costs did not have any loads, graphs
    did not say what can be split, and clusters neither whether messages against each other go at the same time, nor
    what memory nodes have.
    """
    for stage in _stages(plan):
        stage["backend"] = "eager"
        if stage["state"] == "whole":
            del stage["state"]
        if stage["versions"] == 1:
            del stage["versions"]
        if not stage["offload"]:
            del stage["offload"]
        if not stage["offload_to"]:
            del stage["offload_to"]
        if not stage["regions"]:
            del stage["regions"]
    if plan["weights"] == "flush":
        plan = {name: value for name, value in plan.items() if name not in ("weights", "predictor")}
    if plan["trains"]:
        plan = {field: value for field, value in plan.items() if field != "trains"}
    cluster = without_default_fields(plan["cluster"])
    costs, graph = without_default_loads(plan["costs"]), fingerprinted(plan["graph"])
    return plan | {"cluster": cluster, "costs": costs, "graph": graph}


def _stages(plan: object) -> Iterator[dict[str, Any]]:
    stages: object = cast("dict[str, Any]", plan).get("stages") if isinstance(plan, dict) else None
    for stage in cast("list[Any]", stages) if isinstance(stages, list) else []:
        if isinstance(stage, dict):
            yield cast("dict[str, Any]", stage)
