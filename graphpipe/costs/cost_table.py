"""The cost table: how long each operator takes on each device type, and where each number came from."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from graphpipe.errors import InvalidInput
from graphpipe.files.json_document import fingerprint, from_body, read_document, write_document
from graphpipe.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Seconds (of temporaries: bytes) as a function of samples n >= 1: the largest of the lines `fixed + slope * n`.

    One line is a kernel whose efficiency saturates (half-peak work is the fixed part); two are a roofline.
    No lines: the operator takes none.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    lines: tuple[tuple[float, float], ...] = ()

    def __call__(self, samples: float) -> float:
        """Return what `samples` samples take; none take nothing."""
        return max((fixed + slope * samples for fixed, slope in self.lines), default=0.0) if samples else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Temporaries:
    """Bytes that one operator holds only while it runs, and what the loss after it keeps."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    forward: Curve
    """The most that is held in a forward beyond what there is at its end: outputs, and what the backward reads."""
    backward: Curve
    """The most that is held in a backward beyond what there was at its beginning: gradients of values, and those of
    parameters before they are added to the others. What it frees meanwhile counts against it; gradients that arrive
    do not count."""
    loss_bytes_per_sample: float = 0.0
    """What the loss function keeps for the backward, where the operator puts out the model's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Costs of one operator on one device type."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    op: str
    device_type: str
    forward: Curve
    input_gradient: Curve
    weight_gradient: Curve
    source: Literal["analytic", "profiled", "imported"]
    """Analytic: computed from FLOPs and bytes. Profiled: measured here. Imported: came with the graph."""
    error: float | None = None
    """Profiled only: largest relative error of the fitted curve on its measurements (0.05 is 5 %)."""
    temporaries: Temporaries | None = None
    """Profiled only: what is held while the operator runs; None where it is not known."""


# No slots: the derived look-ups below are cached properties.
@dataclass(frozen=True, kw_only=True)
class CostTable:
    """One row per operator and device type, and what the optimizer costs.

    Raises:
        InvalidInput: a row is listed twice, or a cost is negative or not finite.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    graph_fingerprint: str
    rows: tuple[OpCost, ...]
    state_bytes_per_parameter_byte: float = 4.0
    """Parameters, gradients and optimizer state, in units of the parameters (AdamW in fp32: 4)."""
    optimizer_seconds_per_parameter_byte: float = 0.0
    """Time of the optimizer step."""
    task_overhead_seconds: float = 0.0
    """What the runtime itself costs per task on this machine."""
    kept_for_weight_gradient: float = 1.0
    """Where the backward is split: share of a sample's activations that stays from the end of the input gradient to the
    end of the weight gradient. 1, the safe side, frees nothing early; inputs must stay, attention scores need not."""

    def __post_init__(self) -> None:
        for field in (
            "state_bytes_per_parameter_byte",
            "optimizer_seconds_per_parameter_byte",
            "task_overhead_seconds",
        ):
            if not 0 <= getattr(self, field) < float("inf"):
                raise InvalidInput(
                    f"is {getattr(self, field)}, must be finite and not negative", where=f"costs, {field}"
                )
        if not 0 <= self.kept_for_weight_gradient <= 1:
            raise InvalidInput(
                f"is {self.kept_for_weight_gradient}, must be 0 to 1", where="costs, kept_for_weight_gradient"
            )
        seen: set[tuple[str, str]] = set()
        for row in self.rows:
            if (row.op, row.device_type) in seen:
                raise InvalidInput("is listed twice", where=f"cost of op {row.op} on {row.device_type}")
            seen.add((row.op, row.device_type))
            _check_lines(row)

    @cached_property
    def by_op(self) -> dict[tuple[str, str], OpCost]:
        """Rows by (operator, device type)."""
        return {(row.op, row.device_type): row for row in self.rows}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON of this table."""
        return fingerprint(self)

    def check_for(self, graph: Graph, device_types: set[str]) -> None:
        """Check that the table covers this graph on these device types.

        Raises:
            InvalidInput: made for another graph, or a row is missing (the first is named).
        """
        if self.graph_fingerprint != graph.fingerprint:
            raise InvalidInput(
                f"the cost table was made for graph {self.graph_fingerprint[:12]}, "
                f"this graph '{graph.name}' is {graph.fingerprint[:12]}",
                remedy="Estimate or profile the costs of this graph.",
            )
        for kind in sorted(device_types):
            for op in graph.ops:
                if (op.name, kind) not in self.by_op:
                    raise InvalidInput(f"the cost table has no row for op '{op.name}' on device type '{kind}'")

    def save(self, path: str | Path) -> None:
        """Write the table as a JSON document."""
        write_document(path, "costs", self)

    @staticmethod
    def load(path: str | Path) -> "CostTable":
        """Read a table written by `save`.

        Raises:
            InvalidInput: the file is not a valid cost table of this schema version.
        """
        return read_document(path, "costs", lambda body: from_body(CostTable, body, str(path)))


def _check_lines(row: OpCost) -> None:
    held = row.temporaries or Temporaries(forward=Curve(), backward=Curve())
    curves = {"forward": row.forward, "input_gradient": row.input_gradient, "weight_gradient": row.weight_gradient}
    curves |= {"temporaries.forward": held.forward, "temporaries.backward": held.backward}
    curves["temporaries.loss_bytes_per_sample"] = Curve(lines=((0.0, held.loss_bytes_per_sample),))
    for name, curve in curves.items():
        for fixed, slope in curve.lines:
            if not (0 <= fixed < float("inf") and 0 <= slope < float("inf")):
                where = f"cost of op {row.op} on {row.device_type}, {name}"
                raise InvalidInput(f"is {fixed} + {slope} n, must be finite and not negative", where=where)
