"""Notes in the layouts of operators which heads keep the logits of their rank, because the loss is a cross-entropy."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from graphpipe.graph import Exchanges, OpShards, ShardFigures
from graphpipe.graph.op_shards import HALF
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture.reading import SAMPLES
from graphpipe.model.shards.logits.loss_trial import exchanged_by_loss
from graphpipe.model.shards.team import own_range
from graphpipe.model.torch_private import flatten, unflatten

_RANKS = 2


def with_logits(
    captured: Captured, found: Mapping[str, OpShards], loss_fn: Callable[[Any, Any], Any], targets: Any
) -> dict[str, OpShards]:
    """Return the layouts, in which a head keeps its logits if only a cross-entropy reads them.

    Args:
        captured: the model.
        found: layouts by operator.
        loss_fn: of the training.
        targets: of some samples; None: one label for each row of the logits.
    """
    changed = dict(found)
    for name, shards in found.items():
        heads = [each.submodule for each in shards.submodules if each.style == "vocabulary-columns"]
        nodes = [each for each in captured.nodes[name] if each.op == "call_module" and str(each.target) in heads]
        if len(heads) != 1 or len(nodes) != 1:
            continue
        logits = _read_by_loss(nodes[0], captured.nodes[name])
        exchanged = None if logits is None else _exchanged(captured, logits, loss_fn, targets)
        if exchanged is not None:
            changed[name] = _keeping(shards, heads[0], _joined(captured, nodes[0]), exchanged)
    return changed


def _read_by_loss(head: fx.Node, inside: tuple[fx.Node, ...]) -> fx.Node | None:
    """Return the node of the model's output that a head's value becomes, if nothing else reads it or enters it.

    A factor of the model, such as a temperature, gets a gradient from all columns, so ranks gather them for it."""
    node = head
    while True:
        readers = [*node.users]
        if len(readers) != 1 or readers[0] not in inside:
            return None
        if readers[0].op == "output":
            return node
        if len(readers[0].all_input_nodes) > 1:
            return None
        node = readers[0]


def _exchanged(
    captured: Captured, logits: fx.Node, loss_fn: Callable[[Any, Any], Any], targets: Any
) -> Exchanges | None:
    made: dict[fx.Node, Tensor] = {}
    rows = [len(each) for each in flatten(targets)[0] if isinstance(each, Tensor) and each.ndim]

    def like(node: fx.Node) -> Tensor:
        reading = captured.readings[node]
        if node not in made:
            assert reading.shape is not None
            shape = (rows[0], *reading.shape[1:]) if rows and reading.shape[:1] == SAMPLES[1:] else reading.shape
            made[node] = torch.empty(shape, dtype=reading.dtype, device="meta")
        return made[node]

    (output,) = (node for node in logits.users if node.op == "output")
    try:
        leaves: Any = map_arg(output.args[0], like)
    except (AssertionError, RuntimeError, TypeError):  # a shape that depends on values
        return None
    whole = unflatten([*leaves], captured.module_graph.output_spec)
    found = exchanged_by_loss(loss_fn, whole, made[logits], targets)
    if found is None:
        return None
    return Exchanges(reductions=found.reductions, bytes_per_sample=found.bytes / made[logits].shape[0])


def _joined(captured: Captured, head: fx.Node) -> Exchanges:
    """Return what ranks exchange to gather the logits of a head."""
    reading = captured.readings[head]
    assert reading.shape is not None
    *rows, words = reading.shape
    start, stop = own_range(words, _RANKS, _RANKS - 1)
    count = torch.Size(rows).numel() * (stop - start) * reading.dtype.itemsize
    return Exchanges(reductions=HALF, bytes_per_sample=count / SAMPLES[1])


def _keeping(shards: OpShards, head: str, joined: Exchanges, exchanged: Exchanges) -> OpShards:
    def instead(figures: ShardFigures) -> ShardFigures:
        return replace(figures, forward=figures.forward.without(joined) + exchanged)

    sequence = shards.sequence
    if sequence is not None:
        sequence = replace(sequence, figures=instead(sequence.figures))
    submodules = tuple(
        replace(each, style="vocabulary-logits") if each.submodule == head else each for each in shards.submodules
    )
    return replace(shards, submodules=submodules, sequence=sequence, figures=instead(shards.figures))
