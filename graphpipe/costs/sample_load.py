"""Loads of samples: how much work each sample is for some operators.

A sample with 3 images is 3 times the work of a sample with 1 image for the image encoder, and the same work for the
rest of the model. A load is a multiple of the sample that the costs were found for.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from graphpipe.errors import InvalidInput, nearest
from graphpipe.files.json_body import without_empty
from graphpipe.graph import Graph

Values = Mapping[float, float] | Mapping[int, float] | Sequence[float]
"""Shares (or counts) of samples by load, or the loads of the samples of a data set."""
Loads = Mapping[str, Values]
"""Loads by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLoad:
    """The loads that samples are for some operators, and how many samples have each load.

    Raises:
        InvalidInput: a load or a share is negative or not finite, or every load is 0.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    """The name that the load was declared with: a submodule, an operator, a pattern or an input of the model."""
    ops: tuple[str, ...]
    """Operators whose costs grow with the load."""
    loads: tuple[float, ...]
    """The loads that samples have, ascending."""
    shares: tuple[float, ...]
    """The share of the samples that have each load. They sum to 1."""
    balanced: bool = False
    """Whether the samples of a mini-batch are put into an order in which its parts have about the same load."""

    @model_serializer(mode="wrap")
    def _body(self, body_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Other loads have the body that they had before mini-batches could be balanced.
        return without_empty(body_of(self), "balanced")

    def __post_init__(self) -> None:
        where = f"load '{self.name}'"
        for number in (*self.loads, *self.shares):
            if not (math.isfinite(number) and number >= 0):
                raise InvalidInput(f"lists {number}, must be finite and not negative", where=where)
        if len(self.loads) != len(self.shares) or list(self.loads) != sorted(set(self.loads)):
            raise InvalidInput(f"needs one share for each load, with ascending loads: {self.loads}", where=where)
        if not math.isclose(sum(self.shares), 1.0):
            raise InvalidInput(f"has shares that sum to {sum(self.shares)}, must be 1", where=where)
        if not self.mean:
            raise InvalidInput("is 0 for every sample", where=where, remedy="Leave it out, or give a larger load.")

    @property
    def mean(self) -> float:
        """The expected load of a sample."""
        return sum(load * share for load, share in zip(self.loads, self.shares, strict=True))

    @property
    def largest(self) -> float:
        """The largest load that any sample has."""
        return max(load for load, share in zip(self.loads, self.shares, strict=True) if share)


def declare_loads(graph: Graph, loads: Loads, *, balanced: bool = False) -> tuple[SampleLoad, ...]:
    """Return the loads of a graph's operators.

    Args:
        graph: of the model.
        loads: by the name of a submodule, an operator, a pattern with `*`, or an input of the model. An input stands
            for all operators that read only this input, directly or through other operators. The value is the share
            (or the number) of samples by load, `{1: 0.5, 4: 0.5}`, or the load of every sample, `[1, 1, 4, ...]`.
        balanced: whether mini-batches are balanced by these loads.

    Raises:
        InvalidInput: a name matches nothing, two names match the same operator, or a load cannot be used.
    """
    declared = tuple(replace(_declared(graph, name, values), balanced=balanced) for name, values in loads.items())
    owner: dict[str, str] = {}
    for load in declared:
        for op in load.ops:
            if owner.setdefault(op, load.name) != load.name:
                raise InvalidInput(
                    f"operator '{op}' has two loads, '{owner[op]}' and '{load.name}'",
                    where="loads",
                    remedy="Give one of them a narrower pattern.",
                )
    return declared


def parse_loads(texts: Sequence[str]) -> Loads:
    """Return the loads that a person wrote: `NAME=LOAD:SHARE,...` or `NAME=LOAD,LOAD,...`.

    Raises:
        InvalidInput: a text has another form, or a name is written twice.
    """
    values_by_name: dict[str, Values] = {}
    for text in texts:
        name, _, values = text.rpartition("=")
        if not name or name in values_by_name:
            what = f"'{text}' names '{name}' again" if name else f"'{text}' has no name"
            raise InvalidInput(what, where="loads", remedy=_REMEDY)
        pairs = [part.partition(":")[::2] for part in values.split(",")]
        try:
            if all(share for _, share in pairs):
                shares = values_by_name[name] = dict[float, float]()
                for load, share in pairs:
                    shares[float(load)] = shares.get(float(load), 0.0) + float(share)
            else:
                values_by_name[name] = [float(part) for part in values.split(",")]
        except ValueError:
            raise InvalidInput(f"'{text}' has something else than numbers", where="loads", remedy=_REMEDY) from None
    return values_by_name


_REMEDY = "Write NAME=LOAD:SHARE,LOAD:SHARE or NAME=LOAD,LOAD, such as vision=1:0.5,4:0.5."


def _declared(graph: Graph, name: str, values: Values) -> SampleLoad:
    where = f"load '{name}'"
    pairs = values.items() if isinstance(values, Mapping) else Counter(map(float, values)).items()
    counts = {float(load): float(share) for load, share in pairs}
    total = sum(counts.values())
    if not (math.isfinite(total) and total > 0):
        remedy = "Give at least one load that some samples have."
        raise InvalidInput(f"has shares that sum to {total}", where=where, remedy=remedy)
    loads = sorted(counts)
    shares = tuple(counts[load] / total for load in loads)
    return SampleLoad(name=name, ops=_matching(graph, name), loads=tuple(loads), shares=shares)


def _matching(graph: Graph, name: str) -> tuple[str, ...]:
    """Return the operators that a name stands for, in the order of the graph."""
    ops = [op.name for op in graph.ops if op.name.startswith(f"{name}.") or fnmatchcase(op.name, name)]
    inputs = [model_input.name for model_input in graph.inputs]
    if not ops and name in inputs:
        reads = _inputs_read(graph)
        ops = [op.name for op in graph.ops if reads[op.name] == frozenset({name})]
    if not ops:
        known = [*inputs, *dict.fromkeys(op.name.split(".")[0] for op in graph.ops)]
        what = f"matches no operator and no input of '{graph.name}'"
        raise InvalidInput(what, where=f"load '{name}'", remedy=nearest(name, known))
    return tuple(ops)


def _inputs_read(graph: Graph) -> dict[str, frozenset[str]]:
    """Return the model inputs that each operator reads, directly or through others."""
    inputs_by_op: dict[str, frozenset[str]] = {}
    for name in graph.order:
        before = (inputs_by_op[other] for other in graph.predecessors[name])
        inputs_by_op[name] = frozenset(graph[name].model_inputs).union(*before)
    return inputs_by_op
