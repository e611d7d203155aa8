"""The graph of the operators of an Aceso run, with the bytes of the variants that were run."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from graphpipe.graph import Edge, Graph, Op, Shared, Work
from graphpipe.importers.aceso_profile import OpProfile
from graphpipe.importers.megatron_layer import FIRST, NOT_SAVED, SKIPS, TIED, VALUES

WORD_EMBEDDING = "word_embedding"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOp:
    """An operator of the model as it was run."""

    row: int
    """Position of the operator in the profile."""
    algorithm: int
    """How the operator's weights are split."""
    layer: int | None
    profile: OpProfile
    """Profile of one micro-batch of the nearest profiled size, in the tensor-parallel variant that was run."""
    profiled_samples: int
    stage: int
    recompute: bool
    slow_links: bool
    """Whether the group of the stage has the slower of the collectives that were measured."""


def op_names(ops: Sequence[RunOp]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return a name for every operator, and the recomputed regions of every stage.

    A region is a run of neighbours of one stage that are recomputed, and ends before a new layer. Its name comes before
    those of its operators: `region-5.layers.3.enc-MLP-gelu`.
    """
    names: list[str] = []
    regions: dict[int, list[str]] = {op.stage: [] for op in ops}
    count, before = 0, None
    for op in ops:
        name = op.profile.name if op.layer is None else f"layers.{op.layer}.{op.profile.name}"
        if op.recompute:
            goes_on = before is not None and before.recompute and before.stage == op.stage
            if not goes_on or op.profile.name == FIRST:
                count += 1
                regions[op.stage].append(f"region-{count}")
            name = f"region-{count}.{name}"
        names.append(name)
        before = op
    return tuple(names), tuple(tuple(region) for _, region in sorted(regions.items()))


def run_graph(name: str, ops: Sequence[RunOp], names: Sequence[str]) -> Graph:
    """Return the graph of the operators, whose bytes are those on one GPU of the groups that ran them."""
    skips = _skips(ops)
    edges = [Edge(source=names[s], target=names[t], bytes_per_sample=count) for (s, t), count in skips.items()]
    outputs = [op.profile.output_bytes / op.profiled_samples for op in ops]
    for (source, target), count in skips.items():
        for at in range(source + 1, target):
            outputs[at] = max(0.0, outputs[at] - count)
    for at, (one, other) in enumerate(pairwise(names)):
        edges.append(Edge(source=one, target=other, bytes_per_sample=outputs[at]))
    tied = _tied(ops)
    return Graph(
        name=name,
        ops=tuple(_op(op, names[at], outputs[at], tied) for at, op in enumerate(ops)),
        edges=tuple(edges),
        shared=tuple(Shared(name=WORD_EMBEDDING, bytes=count) for count in [min(tied.values(), default=0.0)] if count),
    )


def _skips(ops: Sequence[RunOp]) -> dict[tuple[int, int], float]:
    """Return the bytes per sample of the edges between operators that are not neighbours."""
    skips: dict[tuple[int, int], float] = {}
    last: dict[str, int] = {}
    for at, op in enumerate(ops):
        passed = last.get(SKIPS.get(op.profile.name, ""))
        if passed is not None and ops[passed].layer == op.layer:
            through, count = ops[passed], ops[passed].profile.input_bytes
            source = passed
            if through.profile.name == VALUES:
                residual = ops[last[FIRST]].profile.input_bytes if FIRST in last else 0.0
                count = max(0.0, op.profile.output_bytes - residual)
            elif passed and ops[passed - 1].stage == through.stage:
                # What passes the layernorm is the output before it. Another stage's output is passed on here.
                source = passed - 1
            skips[source, at] = count / through.profiled_samples
        last[op.profile.name] = at
    return skips


def _tied(ops: Sequence[RunOp]) -> dict[str, float]:
    """Return the bytes of the word embedding at the operators that share it; empty if they do not."""
    held = {op.profile.name: op.profile.weight_bytes for op in ops if op.profile.name in TIED}
    return held if len(held) == len(TIED) else {}


def _op(op: RunOp, name: str, output: float, tied: dict[str, float]) -> Op:
    saved = op.profile.activation_bytes / op.profiled_samples
    if op.profile.name in NOT_SAVED:
        saved = max(0.0, saved - output)
    return Op(
        name=name,
        kind=op.profile.name,
        parameters=(WORD_EMBEDDING,) if op.profile.name in tied and min(tied.values()) else (),
        parameter_bytes=op.profile.weight_bytes,
        output_bytes_per_sample=output,
        work=Work(saved_bytes_per_sample=saved),
    )
