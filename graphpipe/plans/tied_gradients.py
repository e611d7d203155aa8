"""The gradients of parameters that several stages share, such as an embedding and the projection tied to it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphpipe.graph import Graph, Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedGradients:
    """The trainable parameters that the same stages share.

    Each of these stages has a copy on each of its devices. After the last backward of all of them, one all-reduce over
    all these devices sums the gradients. It replaces the all-reduce of each stage. Every replica contributes the
    gradients of its own samples, so the data-parallel degrees may differ. Then all copies make the same optimizer step.
    """

    stages: tuple[int, ...]
    """Positions of the stages, ascending. The copy of the first stage is saved and counts in the gradient norm."""
    devices: tuple[int, ...]
    """The devices of all these stages, each once, ascending."""
    parameters: tuple[str, ...]
    """Names of the parameters, in order of `Graph.shared`."""
    bytes: float


def tied_gradients_of(graph: Graph, stages: Sequence[tuple[Iterable[str], Iterable[int]]]) -> tuple[TiedGradients, ...]:
    """Return the tied gradients of stages, given as operators and devices; empty if stages do not share parameters."""
    if not graph.shared:
        return ()
    stage_of = {op: number for number, (ops, _) in enumerate(stages) for op in ops}
    held: dict[tuple[int, ...], list[Shared]] = {}
    for tied in graph.shared:
        holders = tuple(sorted({stage_of[op] for op in graph.holders[tied.name]}))
        if tied.trainable and len(holders) > 1:
            held.setdefault(holders, []).append(tied)
    return tuple(
        TiedGradients(
            stages=holders,
            devices=tuple(sorted({device for number in holders for device in stages[number][1]})),
            parameters=tuple(tied.name for tied in some),
            bytes=sum(tied.bytes for tied in some),
        )
        for holders, some in sorted(held.items(), key=lambda item: item[0])
    )
