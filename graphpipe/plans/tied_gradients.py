"""The gradients of parameters that several stages share, such as an embedding and the projection tied to it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphpipe.costs.ranks.rank_graph import divided_everywhere
from graphpipe.graph import Graph, Shared
from graphpipe.plans.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedGradients:
    """The trainable parameters that the same stages share.

    Each of these stages has a copy on each of its devices. After the last backward of all of them, one all-reduce over
    all these devices sums the gradients. It replaces the all-reduce of each stage. Every replica contributes the
    gradients of its own samples, so the data-parallel degrees may differ. Then all copies make the same optimizer step.

    If as many devices share each replica of all these stages, devices of equal rank have the same parts, and sum them.
    """

    stages: tuple[int, ...]
    """Positions of the stages, ascending. The copy of the first stage is saved and counts in the gradient norm."""
    devices: tuple[int, ...]
    """The devices of all these stages, each once, ascending."""
    parameters: tuple[str, ...]
    """Names of the parameters, in order of `Graph.shared`."""
    bytes: float
    """Bytes that each ring sums."""
    rings: tuple[tuple[int, ...], ...]
    """The devices that sum with each other, ascending: all of them, or those of each rank."""


def tied_gradients_of(graph: Graph, stages: Sequence[Stage]) -> tuple[TiedGradients, ...]:
    """Return the tied gradients of stages; empty if stages do not share parameters."""
    if not graph.shared:
        return ()
    stage_of = {op: number for number, stage in enumerate(stages) for op in stage.ops}
    held: dict[tuple[int, ...], list[Shared]] = {}
    for tied in graph.shared:
        holders = tuple(sorted({stage_of[op] for op in graph.holders[tied.name]}))
        if tied.trainable and len(holders) > 1:
            held.setdefault(holders, []).append(tied)
    return tuple(
        _summed(graph, [stages[number] for number in holders], holders, some)
        for holders, some in sorted(held.items(), key=lambda item: item[0])
    )


def _summed(graph: Graph, sharing: Sequence[Stage], numbers: tuple[int, ...], some: Sequence[Shared]) -> TiedGradients:
    devices = _ascending(device for stage in sharing for device in stage.devices)
    ranks = {stage.tensor for stage in sharing}
    rings, divided, parts = (devices,), frozenset[str](), 1
    if len(ranks) == 1 and ranks != {1}:
        (parts,), divided = ranks, divided_everywhere(graph)
        groups = (_ascending(at for stage in sharing for at in stage.peers[rank]) for rank in range(parts))
        rings = tuple(groups)
    return TiedGradients(
        stages=numbers,
        devices=devices,
        parameters=tuple(tied.name for tied in some),
        bytes=sum(tied.bytes / parts if tied.name in divided else tied.bytes for tied in some),
        rings=rings,
    )


def _ascending(devices: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(devices)))
