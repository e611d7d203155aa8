"""Notes in a graph how ranks can share its operators, and what that saves and costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph, Op, SubmoduleShards
from graphpipe.model.capture.capture import Captured, capture_again, capture_measured, measure, trace
from graphpipe.model.capture.same_model import other_model
from graphpipe.model.shards.layers.adapted import adapted_of
from graphpipe.model.shards.layouts import Layout, Styles, find_layout
from graphpipe.model.shards.logits.with_logits import with_logits
from graphpipe.model.shards.sequence.find_sequence import with_sequence
from graphpipe.model.shards.shard_measuring import ShardMeasuring
from graphpipe.model.without_data.construction import ModelBuilder
from graphpipe.model.without_data.meta_model import without_data
from graphpipe.user_frames import warn_user


def with_shards(
    graph: Graph,
    model: nn.Module | ModelBuilder,
    styles: Styles | None = None,
    *,
    sequence_parallel: bool = False,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    targets: Any = None,
) -> Graph:
    """Return a graph whose operators say how tensor-parallel ranks can share them.

    Layouts are those of Megatron-LM: attention by heads, pairs of linear layers by columns and rows, embeddings and
    heads by vocabulary, mixtures of experts by the width of the experts. What has no layout runs whole on every rank.

    Args:
        graph: captured from the model.
        model: with or without data, or a function that builds it.
        styles: layouts by hand, by pattern of submodules (`layers.*.up`), which come before those that are found:
            `column`, `row`, `vocabulary-rows`, `vocabulary-columns`, or `copied` to leave a submodule whole. Also
            names in plans of `transformers` (`colwise`), and objects of `torch.distributed.tensor.parallel`.
        sequence_parallel: also note how ranks can divide the sequence between the layers that they share (Korthikanti
            et al. 2022). Plans that ask for it (`PlanSettings.sequence_parallel`) do so.
        loss_fn: of the training. If it reads the logits of a head in a cross-entropy alone, ranks keep their parts of
            these, and exchange maxima and sums. It is called with tensors without data.
        targets: of some samples, as it takes them. None: a label for each row of the logits.

    Raises:
        InvalidInput: the graph is of another model, a pattern names nothing, or a style does not fit.
    """
    if graph.origin is None:
        remedy = "Capture the model, and give its graph."
        raise InvalidInput(f"graph '{graph.name}' was not captured from a module", where="with_shards", remedy=remedy)
    model = without_data(model)
    layout = find_layout(model, styles)
    origin = replace(
        graph.origin, split_ops=(), method="export" if graph.origin.method == "auto" else graph.origin.method
    )
    traced, origin = trace(model, graph.inputs, origin, compare_modes=False)
    measured = measure(traced, graph.inputs, origin)
    captured = capture_measured(model, graph.inputs, origin, measured)
    if {op.name for op in captured.graph.ops} != {op.name for op in graph.ops}:
        raise other_model("its operators differ")
    _warn_of_parted_layers(parted_layers(captured, layout))
    measuring = ShardMeasuring(model, traced, captured, _shareable(model, captured, layout))
    found = measuring.found() if measuring.shared else {}
    if sequence_parallel and found:
        measuring.restore()
        found = with_sequence(model, traced, captured, found)
    if loss_fn is not None:
        found = with_logits(captured, found, loss_fn, targets)
    return replace(graph, ops=tuple(replace(op, shards=found.get(op.name)) for op in graph.ops))


def captured_with_shards(
    captured: Captured,
    model: nn.Module,
    *,
    sequence_parallel: bool = False,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    measured: str = "",
) -> Captured:
    """Return a capture whose graph says how ranks can share its operators.

    Submodules of which ranks share several layers become operators, if their layers were operators of their own.

    Args:
        captured: the model.
        model: the same.
        sequence_parallel: as in `with_shards`.
        loss_fn: as in `with_shards`.
        measured: fingerprint of the graph whose costs are known. If it is this one, its operators stay as they are.

    Raises:
        InvalidInput: as `capture`.
    """
    origin, parted = captured.graph.origin, parted_layers(captured, find_layout(model))
    if origin is not None and parted and captured.graph.fingerprint != measured:
        captured = capture_again(model, captured.graph.inputs, replace(origin, opaque=(*origin.opaque, *parted)))
    graph = with_shards(captured.graph, model, sequence_parallel=sequence_parallel, loss_fn=loss_fn)
    return replace(captured, graph=graph)


def parted_layers(captured: Captured, layout: Layout) -> list[str]:
    """Return the submodules of which ranks could share columns and rows of layers, if these were not called apart."""
    styles: dict[str, set[str]] = {}
    for node in captured.module_graph.graph.nodes:
        if node.op != "call_module":
            continue
        called = str(node.target)
        for path in (called, *_above(called)):  # what is in a layer that has adapters may be called apart too
            if path in layout:
                styles.setdefault(path.rpartition(".")[0], set()).add(layout[path].style)
    return sorted(path for path, found in styles.items() if path and {"column", "row"} <= found)


def _above(path: str) -> list[str]:
    return [path[:at] for at, sign in enumerate(path) if sign == "."]


def _warn_of_parted_layers(parted: list[str]) -> None:
    if parted:
        others = f" and {len(parted) - 1} others" if len(parted) > 1 else ""
        warn_user(
            f"the linear layers of '{parted[0]}'{others} are separate operators, so ranks do not share them. Keep "
            f"these submodules whole: capture(..., opaque={parted})"
        )


def _shareable(model: nn.Module, captured: Captured, layout: Layout) -> dict[str, Sequence[SubmoduleShards]]:
    """Return what ranks can share of the submodules that each operator calls.

    A parameter that something else reads whole, such as glue, stays whole everywhere.
    """
    found = {op.name: _called(captured, op, layout) for op in captured.graph.ops}
    names = {id(each): name for name, each in model.named_parameters()}
    nodes = [node for node in captured.module_graph.graph.nodes if node.op == "get_attr"]
    read = {str(node.target) for node in nodes if str(node.target) not in captured.module_graph.constants}
    by_glue = {names[id(each)] for name, each in model.named_parameters(remove_duplicate=False) if name in read}
    while True:
        divided = {name: _divided(model, names, each) for name, each in found.items()}
        whole = by_glue.union(*({*op.parameters} - divided[op.name] for op in captured.graph.ops))
        mixed = {name: _divided(model, names, each) & whole for name, each in found.items()}
        if not any(mixed.values()):
            return {name: each for name, each in found.items() if each}
        found = {name: _without(model, names, each, whole) for name, each in found.items()}


def _called(captured: Captured, op: Op, layout: Layout) -> Sequence[SubmoduleShards]:
    called = [str(node.target) for node in captured.nodes.get(op.name, ()) if node.op == "call_module"]
    inside = [
        each for path, each in layout.items() if any(path == root or path.startswith(f"{root}.") for root in called)
    ]
    return sorted(inside, key=lambda each: each.submodule)


def _divided(model: nn.Module, names: Mapping[int, str], shards: Sequence[SubmoduleShards]) -> set[str]:
    # The parameters that these submodules divide, or hold whole among the parts of ranks; but not biases of rows.
    found: set[str] = set()
    for each in shards:
        part = model.get_submodule(each.submodule)
        if each.style == "heads" and not isinstance(part, nn.MultiheadAttention):
            continue
        held = part.parameters(recurse=each.style == "heads" or adapted_of(part) is not None)
        found |= {names[id(parameter)] for parameter in held if parameter.ndim > 1 or each.style != "row"}
    return found


def _without(
    model: nn.Module, names: Mapping[int, str], shards: Sequence[SubmoduleShards], whole: set[str]
) -> Sequence[SubmoduleShards]:
    # Tables stand alone. Other submodules belong together, so none of an operator's is left.
    bad = [each for each in shards if _divided(model, names, [each]) & whole]
    if any(not each.style.startswith("vocabulary") for each in bad):
        return ()
    return [each for each in shards if each not in bad]
