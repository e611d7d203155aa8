"""The cost table: the costs of each operator on each device type, and the source of each number."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from graphpipe.cluster.ring_exchanges import RingExchanges
from graphpipe.costs.op_cost import OpCost
from graphpipe.costs.sample_load import SampleLoad
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import digest, from_body, to_body, without_empty
from graphpipe.files.json_document import read_document, write_document
from graphpipe.graph import Graph

LEARNED = "costs-learned.json"
"""The file in the folder of a run that has the costs which the run has corrected."""


# No slots: the derived look-ups below are cached properties.
@dataclass(frozen=True, kw_only=True)
class CostTable:
    """One row per operator and device type, and the costs of the optimizer.

    Raises:
        InvalidInput: a row is listed twice, or a cost is negative or not finite.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    graph_fingerprint: str
    rows: tuple[OpCost, ...]
    state_bytes_per_parameter_byte: float = 4.0
    """Bytes of parameters, gradients and optimizer state, in units of the parameters (AdamW in fp32: 4)."""
    optimizer_seconds_per_parameter_byte: float = 0.0
    """Seconds that the optimizer step takes per byte of the parameters."""
    task_overhead_seconds: float = 0.0
    """Seconds that the runtime adds to every task on this machine."""
    step_overhead_seconds: float = 0.0
    """Seconds of every step with a flush besides its tasks, messages and updates. Ranks read their mini-batches and
    compare them, take the norm of the gradients, sum the loss, and wait for each other. Only a run tells this."""
    kept_for_weight_gradient: float | None = None
    """The share of a sample's activations that is kept between the two halves of a split backward, without the
    gradients that weight gradients wait with. Published memory models have such a share, and tables of earlier versions
    have 1. None: what each operator keeps is measured or estimated (see `OpCost.between_halves`)."""
    loads: tuple[SampleLoad, ...] = ()
    """The loads of operators whose costs depend on the sample: n samples cost as much as n times their mean load. Every
    sample is a load of 1 for the other operators."""
    exchanges: RingExchanges | None = None
    """What the devices exchange that share each replica, if the costs are those of each of them and they divide the
    sequence. Sums inside operators are in the rows."""

    @model_serializer(mode="wrap")
    def _body(self, body_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        body = without_empty(body_of(self), "exchanges", "step_overhead_seconds")
        if self.kept_for_weight_gradient is None:
            del body["kept_for_weight_gradient"]
        return body

    def __post_init__(self) -> None:
        for field in (
            "state_bytes_per_parameter_byte",
            "optimizer_seconds_per_parameter_byte",
            "task_overhead_seconds",
            "step_overhead_seconds",
        ):
            if not 0 <= getattr(self, field) < float("inf"):
                raise InvalidInput(
                    f"is {getattr(self, field)}, must be finite and not negative", where=f"costs, {field}"
                )
        if (kept := self.kept_for_weight_gradient) is not None and not 0 <= kept <= 1:
            raise InvalidInput(f"is {kept}, must be 0 to 1", where="costs, kept_for_weight_gradient")
        seen: set[tuple[str, str]] = set()
        for row in self.rows:
            if (row.op, row.device_type) in seen:
                raise InvalidInput("is listed twice", where=f"cost of op {row.op} on {row.device_type}")
            seen.add((row.op, row.device_type))
            row.check()

    @cached_property
    def by_op(self) -> dict[tuple[str, str], OpCost]:
        """Rows by (operator, device type)."""
        return {(row.op, row.device_type): row for row in self.rows}

    @cached_property
    def look_ups(self) -> dict[tuple[int, int, bool], object]:
        """The cost models made from this table, by ids of graph and cluster, and `trains` (see `CostModel.of`)."""
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON of this table."""
        return digest(without_default_loads(to_body(self)))

    def check_for(self, graph: Graph, device_types: set[str]) -> None:
        """Check that the table covers this graph on these device types.

        Raises:
            InvalidInput: made for another graph, or a row is missing (the first is named).
        """
        if self.graph_fingerprint != graph.fingerprint:
            raise InvalidInput(
                f"the cost table was made for graph {self.graph_fingerprint[:12]}, "
                f"but graph '{graph.name}' is {graph.fingerprint[:12]}",
                remedy="Estimate or profile the costs of this graph.",
            )
        for kind in sorted(device_types):
            for op in graph.ops:
                if (op.name, kind) not in self.by_op:
                    raise InvalidInput(f"the cost table has no row for op '{op.name}' on device type '{kind}'")
        for op, count in Counter(op for load in self.loads for op in load.ops).items():
            if op not in graph.index:
                raise InvalidInput(f"'{op}' is not an operator of '{graph.name}'", where="costs, loads")
            if count > 1:
                raise InvalidInput(f"operator '{op}' has {count} loads, must be one", where="costs, loads")

    def save(self, path: str | Path) -> None:
        """Write the table as a JSON document."""
        write_document(path, "costs", self)

    @staticmethod
    def load(path: str | Path) -> "CostTable":
        """Read a table written by `save`, or the one in the folder of a run, which the run has corrected.

        Raises:
            InvalidInput: the file is not a valid cost table of this schema version, or the folder does not have one.
        """
        if Path(path).is_dir() and not (path := Path(path) / LEARNED).exists():
            raise InvalidInput(
                "does not exist: the folder is not that of a run whose last step was measured",
                where=str(path),
                remedy="Name the folder of a training that ended, or a file written by `graphpipe profile`.",
            )
        return read_document(path, "costs", lambda body: from_body(CostTable, body, str(path)))


def without_default_loads(costs: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a table without empty loads. Tables of schema version 1 did not have any loads."""
    return {field: value for field, value in costs.items() if field != "loads" or value}
