"""The JSON Schemas of the documents that people read and write: plans, graphs, costs, traces, stages, settings."""

from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter

from graphpipe.costs import CostTable
from graphpipe.errors import InvalidInput, nearest
from graphpipe.files.json_document import SCHEMA_VERSION, schema_id
from graphpipe.graph import Graph
from graphpipe.planning.by_hand import HandPlan
from graphpipe.plans.plan import PlanFile
from graphpipe.trace import Trace


def _train_config() -> type:
    from graphpipe.training.config.settings import TrainConfig  # imports torch

    return TrainConfig


_TYPES: dict[str, Callable[[], type]] = {
    "plan": lambda: PlanFile,
    "graph": lambda: Graph,
    "costs": lambda: CostTable,
    "trace": lambda: Trace,
    "stages": lambda: HandPlan,
    "train": _train_config,
}


def schema_kinds() -> tuple[str, ...]:
    """Return the kinds of documents that have a schema."""
    return tuple(_TYPES)


def document_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the documents of one kind.

    Raises:
        InvalidInput: an unknown kind; the nearest is given.
    """
    if kind not in _TYPES:
        raise InvalidInput(f"unknown kind of document '{kind}'", remedy=nearest(kind, list(_TYPES)))
    body = TypeAdapter[Any](_TYPES[kind]()).json_schema()
    head = {
        "$schema": {"const": schema_id(kind)},
        "graphpipe": {"const": kind, "description": "The kind of document."},
        "schema_version": {"const": SCHEMA_VERSION},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": schema_id(kind),
        **body,
        "properties": head | body["properties"],
        "required": ["graphpipe", "schema_version", *body.get("required", ())],
    }
