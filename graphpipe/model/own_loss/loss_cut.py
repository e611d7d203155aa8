"""A loss cut out of a skeleton: what a model computes between its outputs, its labels and the loss it returns."""

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.capture.crossing_values import is_anchor
from graphpipe.model.capture.module_graph.module_graph import Skeleton
from graphpipe.model.own_loss.exact_losses import CROSS_ENTROPY, argument, is_mean, why_no_mean, why_not
from graphpipe.model.torch_private import unflatten

BROADCAST = torch.ops.aten.broadcast_tensors.default
IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCut:
    """The nodes between a model's outputs and labels, and its loss."""

    model: str
    loss: fx.Node
    nodes: list[fx.Node]
    outputs: dict[fx.Node, str]
    """Those the loss is made of, and their names."""
    labels: dict[fx.Node, str]

    @staticmethod
    def of(model: str, skeleton: Skeleton, given: Collection[str]) -> "LossCut":
        """Cut the loss out of a skeleton of a model that was given labels, which is changed.

        Raises:
            InvalidInput: there is no loss, or one that is not known to be a mean over labels or samples.
        """
        _leave_out_broadcasts(skeleton.graph)
        (end,) = (node for node in skeleton.graph.nodes if node.op == "output")
        returned = unflatten(list(end.args[0]), skeleton.output_spec)  # pyright: ignore[reportArgumentType]
        if not isinstance(returned, Mapping) or not isinstance(returned.get("loss"), fx.Node):
            raise _refused(model, "does not return a loss for these labels")
        loss = returned["loss"]
        outputs = {node: name for name, node in returned.items() if isinstance(node, fx.Node) and node is not loss}
        inputs = {node: name for name, node in skeleton.inputs.items()}
        nodes = _between(skeleton.graph, loss, {*outputs, *inputs})
        read = {other for node in nodes if not is_anchor(node) for other in node.all_input_nodes}
        cut = LossCut(
            model=model,
            loss=loss,
            nodes=nodes,
            outputs={node: name for node, name in outputs.items() if node in read},
            labels={node: name for node, name in inputs.items() if node in read},
        )
        if not cut.outputs or not set(given) & {*cut.labels.values()}:
            raise _refused(model, "makes its loss of something else than outputs and labels")
        means: set[fx.Node] = set()  # and what is made of them
        for node in filter(is_mean, nodes):
            if reason := why_no_mean(node):
                raise _refused(model, reason)
        for node in nodes:
            if reason := why_not(node, means):
                raise _refused(model, reason)
            if is_mean(node) or not means.isdisjoint(node.all_input_nodes):
                means.add(node)
        if loss not in means:
            raise _refused(model, "makes its loss of no mean")
        return cut

    @property
    def entropies(self) -> list[fx.Node]:
        """The cross-entropies, in order of execution."""
        return [node for node in self.nodes if node.target is CROSS_ENTROPY]

    def formula(self) -> fx.GraphModule:
        """Return what makes the loss of some samples: of outputs, labels and a count per cross-entropy."""
        graph = fx.Graph()
        env = {node: graph.placeholder(name) for node, name in [*self.outputs.items(), *self.labels.items()]}
        counts = {node: graph.placeholder(f"count_{number}") for number, node in enumerate(self.entropies)}
        anchor = next(iter(env.values()))
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
        """Return what counts the labels of a mini-batch that matter to each cross-entropy.

        Raises:
            InvalidInput: that depends on outputs.
        """
        graph = fx.Graph()
        env = {node: graph.placeholder(name) for node, name in self.labels.items()}
        anchor = next(iter(env.values()))
        counts: list[fx.Node] = []
        for each in self.entropies:
            _, targets, ignored, _ = _arguments(each)
            for node in _between(each.graph, targets, {*env, *self.outputs}):
                if not is_anchor(node) and any(other in self.outputs for other in node.all_input_nodes):
                    raise _refused(self.model, "makes the targets of its loss of its outputs")
                env[node] = _copied(graph, node, env, anchor)
            counts.append(graph.call_function(count_labels, (env[targets], ignored)))
        graph.output(tuple(counts))
        return fx.GraphModule(nn.Module(), graph, "Counts")


def _leave_out_broadcasts(graph: fx.Graph) -> None:
    # A mean of squares broadcasts its arguments, which it need not; tracing takes the copies for the originals.
    for node in graph.nodes:
        if node.target is operator.getitem and node.args[0].target is BROADCAST:
            node.replace_all_uses_with(node.args[0].args[0][node.args[1]])


def _between(graph: fx.Graph, end: fx.Node, begins: set[fx.Node]) -> list[fx.Node]:
    # The nodes that `end` is made with, from `begins` on, in order of execution.
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
    remedy = "Leave the labels out of the example, and write a loss function of the model's outputs."
    return InvalidInput(f"{model} {reason}", where="labels", remedy=remedy)


def _arguments(node: fx.Node) -> tuple[Any, Any, int, float]:
    # Scores, targets, the ignored label and label smoothing of a cross-entropy.
    smoothing = argument(node, 5, "label_smoothing", 0.0)
    return node.args[0], node.args[1], argument(node, 4, "ignore_index", IGNORED), smoothing


def entropy(scores: Tensor, targets: Tensor, ignored: int, smoothing: float, count: Tensor, rows: Tensor) -> Tensor:
    """Return a cross-entropy summed over the labels of some rows, over as many labels as these rows have on average.

    Args:
        scores: of every class.
        targets: labels; or, of the shape of the scores, probabilities, which all count.
        ignored: the label that does not count.
        smoothing: of the labels.
        count: labels that count per sample of the mini-batch.
        rows: anything with a first dimension of samples.
    """
    total = nn.functional.cross_entropy(
        scores, targets, ignore_index=ignored, reduction="sum", label_smoothing=smoothing
    )
    return (total.double() / (count * len(rows))).to(total.dtype)


def count_labels(targets: Tensor, ignored: int) -> int:
    """Return how many labels count."""
    return int((targets != ignored).sum()) if not targets.is_floating_point() else len(targets)
