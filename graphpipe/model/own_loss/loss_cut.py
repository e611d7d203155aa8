"""A loss cut out of a module graph: the nodes from a model's outputs and labels to the loss that it returns."""

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.capture.crossing_values import is_anchor
from graphpipe.model.capture.module_graph.module_graph import (
    ModuleGraph,
    device_of,
    mode_dropout,
    sample_count,
    stand_in,
)
from graphpipe.model.own_loss.exact_losses import (
    CROSS_ENTROPY,
    argument,
    is_mean,
    is_number,
    why_not_exact,
    why_not_mean,
)
from graphpipe.model.torch_private import unflatten

BROADCAST = torch.ops.aten.broadcast_tensors.default
FUNCTIONS = (sample_count, device_of, stand_in, mode_dropout)
"""Functions of our own that module graphs call."""
IGNORED = -100
WITHOUT_LABELS = "Leave the labels out of the example, and write a loss function of the model's outputs."
"""What a user can do if the model's own loss cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCut:
    """The nodes from a model's outputs and labels to its loss."""

    model: str
    loss: fx.Node
    nodes: list[fx.Node]
    outputs: dict[fx.Node, str]
    """The outputs that the loss reads, with their names."""
    labels: dict[fx.Node, str]

    @staticmethod
    def of(model: str, module_graph: ModuleGraph, given: Collection[str]) -> "LossCut":
        """Cut the loss out of the graph of a model that was given labels; changes that graph.

        Raises:
            InvalidInput: there is no loss, or it is not known to be a mean over labels or samples.
        """
        _leave_out_broadcasts(module_graph.graph)
        (end,) = (node for node in module_graph.graph.nodes if node.op == "output")
        returned = unflatten(list(end.args[0]), module_graph.output_spec)  # pyright: ignore[reportArgumentType]
        if not isinstance(returned, Mapping) or not isinstance(returned.get("loss"), fx.Node):
            raise _refused(model, "does not return a loss for these labels")
        loss = returned["loss"]
        outputs = {node: name for name, node in returned.items() if isinstance(node, fx.Node) and node is not loss}
        inputs = {node: name for name, node in module_graph.inputs.items()}
        nodes = _between(module_graph.graph, loss, {*outputs, *inputs})
        read = {other for node in nodes if not is_anchor(node) for other in node.all_input_nodes}
        cut = LossCut(
            model=model,
            loss=loss,
            nodes=nodes,
            outputs={node: name for node, name in outputs.items() if node in read},
            labels={node: name for node, name in inputs.items() if node in read},
        )
        if not cut.outputs or not set(given) & {*cut.labels.values()}:
            raise _refused(model, "computes its loss from other values than outputs and labels")
        means = {node for node in cut.outputs if is_number(node)}  # and values computed from them
        for node in filter(is_mean, nodes):
            if reason := why_not_mean(node):
                raise _refused(model, reason)
        for node in nodes:
            if reason := why_not_exact(node, means):
                raise _refused(model, reason)
            if is_mean(node) or not means.isdisjoint(node.all_input_nodes):
                means.add(node)
        if loss not in means:
            raise _refused(model, "computes its loss without a mean")
        return cut

    @property
    def entropies(self) -> list[fx.Node]:
        """The cross-entropies, in order of execution."""
        return [node for node in self.nodes if node.target is CROSS_ENTROPY]

    def formula(self) -> fx.GraphModule:
        """Return a module that computes the loss of some samples from outputs, labels and a count per cross-entropy."""
        graph = fx.Graph(tracer_cls=LossTracer)
        env = {node: graph.placeholder(name) for node, name in [*self.outputs.items(), *self.labels.items()]}
        counts = {node: graph.placeholder(f"count_{number}") for number, node in enumerate(self.entropies)}
        anchor = env[next(iter(self.labels))]
        for node in self.nodes:
            if node in counts:
                scores, targets, ignored, smoothing = (fx.map_arg(each, env.__getitem__) for each in _arguments(node))
                arguments = (scores, targets, ignored, smoothing, counts[node], anchor)
                env[node] = graph.call_function(entropy, arguments)
            else:
                env[node] = _copied(graph, node, env, anchor)
        graph.output(env[self.loss])
        return fx.GraphModule(nn.Module(), graph, "Loss")

    def counting(self) -> fx.GraphModule:
        """Return a module that counts the labels of a mini-batch that count in each cross-entropy.

        Raises:
            InvalidInput: the count depends on outputs.
        """
        graph = fx.Graph(tracer_cls=LossTracer)
        env = {node: graph.placeholder(name) for node, name in self.labels.items()}
        anchor = next(iter(env.values()))
        counts: list[fx.Node] = []
        for each in self.entropies:
            _, targets, ignored, _ = _arguments(each)
            for node in _between(each.graph, targets, {*env, *self.outputs}):
                if not is_anchor(node) and any(other in self.outputs for other in node.all_input_nodes):
                    raise _refused(self.model, "computes the targets of its loss from its outputs")
                env[node] = _copied(graph, node, env, anchor)
            counts.append(graph.call_function(count_labels, (env[targets], ignored)))
        graph.output(tuple(counts))
        return fx.GraphModule(nn.Module(), graph, "Counts")


def _leave_out_broadcasts(graph: fx.Graph) -> None:
    # A mean of squares broadcasts its arguments, which is not needed here. The originals replace the copies.
    for node in graph.nodes:
        if node.target is operator.getitem and node.args[0].target is BROADCAST:
            node.replace_all_uses_with(node.args[0].args[0][node.args[1]])


def _between(graph: fx.Graph, end: fx.Node, begins: set[fx.Node]) -> list[fx.Node]:
    # The nodes from `begins` to `end`, in order of execution.
    found: set[fx.Node] = set()
    stack = [end]
    while stack:
        node = stack.pop()
        if node not in found and node not in begins:
            found.add(node)
            stack += [] if is_anchor(node) else node.all_input_nodes
    return [node for node in graph.nodes if node in found]


def _copied(graph: fx.Graph, node: fx.Node, env: Mapping[fx.Node, fx.Node], anchor: fx.Node) -> fx.Node:
    if is_anchor(node):
        return graph.call_function(node.target, (anchor,))  # pyright: ignore[reportArgumentType]
    return graph.node_copy(node, env.__getitem__)


def _refused(model: str, reason: str) -> InvalidInput:
    return InvalidInput(f"{model} {reason}", where="labels", remedy=WITHOUT_LABELS)


def _arguments(node: fx.Node) -> tuple[Any, Any, int, float]:
    # Scores, targets, the ignored label and label smoothing of a cross-entropy.
    smoothing = argument(node, 5, "label_smoothing", 0.0)
    return node.args[0], node.args[1], argument(node, 4, "ignore_index", IGNORED), smoothing


def entropy(scores: Tensor, targets: Tensor, ignored: int, smoothing: float, count: Tensor, rows: Tensor) -> Tensor:
    """Return the sum of a cross-entropy over the labels of some rows, divided by the average number of such labels.

    Args:
        scores: of every class.
        targets: labels, or probabilities in the shape of the scores, which all count.
        ignored: the label that does not count.
        smoothing: of the labels.
        count: the number of counting labels per sample of the mini-batch.
        rows: any tensor whose first dimension is these rows.
    """
    total = nn.functional.cross_entropy(
        scores, targets, ignore_index=ignored, reduction="sum", label_smoothing=smoothing
    )
    return (total.double() / (count * len(rows))).to(total.dtype)


def count_labels(targets: Tensor, ignored: int) -> int:
    """Return how many labels count."""
    return int((targets != ignored).sum()) if not targets.is_floating_point() else len(targets)


class LossTracer(fx.Tracer):
    """Traces a cut loss once more, which is how torch unpickles a `GraphModule`. Its functions stay whole."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=(entropy, count_labels, *FUNCTIONS))
