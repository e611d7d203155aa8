"""Gradients that stages exchange: of parameters they share, such as an embedding and the projection tied to it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphpipe.graph import Graph, Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The trainable parameters that the same stages share.

    Each of these stages has a copy on each of its devices. Once all of them have done their last backward, the
    gradients are summed in one all-reduce over all these devices, in place of the all-reduce of each stage: every
    replica of every stage contributes the samples it has seen, whatever the data-parallel degrees. Then all copies
    make the same optimizer step.
    """

    stages: tuple[int, ...]
    """Ascending. The first one's copy is saved, and counts in the norm of the gradients."""
    devices: tuple[int, ...]
    """Of all these stages, each once, ascending."""
    parameters: tuple[str, ...]
    """Their names, in order of `Graph.shared`."""
    bytes: float


def exchanges_of(graph: Graph, stages: Sequence[tuple[Iterable[str], Iterable[int]]]) -> tuple[Exchange, ...]:
    """Return what stages, given as operators and devices, must exchange; nothing if none share a parameter."""
    if not graph.shared:
        return ()
    stage_of = {op: number for number, (ops, _) in enumerate(stages) for op in ops}
    held: dict[tuple[int, ...], list[Shared]] = {}
    for each in graph.shared:
        holders = tuple(sorted({stage_of[op] for op in graph.holders[each.name]}))
        if each.trainable and len(holders) > 1:
            held.setdefault(holders, []).append(each)
    return tuple(
        Exchange(
            stages=holders,
            devices=tuple(sorted({device for number in holders for device in stages[number][1]})),
            parameters=tuple(each.name for each in some),
            bytes=sum(each.bytes for each in some),
        )
        for holders, some in sorted(held.items(), key=lambda item: item[0])
    )
