"""A loss cut out of a module graph: the nodes from a model's outputs and labels to the loss that it returns."""

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    CTC,
    argument,
    is_counted,
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
    checks: list[fx.Node]
    """Checks of the labels, which raise an error for some values."""

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
            checks=_checks_of(module_graph.graph, given, outputs, inputs),
        )
        if not cut.outputs or not set(given) & {*cut.labels.values()}:
            raise _refused(model, "computes its loss from other values than outputs and labels")
        rows = _computed_from([*inputs], nodes)
        means = {node for node in cut.outputs if is_number(node)}  # and values computed from them
        for node in filter(is_mean, nodes):
            if reason := why_not_mean(node):
                raise _refused(model, reason)
        for node in nodes:
            if reason := why_not_exact(node, means, rows):
                raise _refused(model, reason)
            if is_mean(node) or not means.isdisjoint(node.all_input_nodes):
                means.add(node)
        if loss not in means:
            raise _refused(model, "computes its loss without a mean")
        return cut

    @property
    def counted(self) -> list[fx.Node]:
        """The cross-entropies and sums, in order of execution."""
        return [node for node in self.nodes if is_counted(node)]

    def formula(self) -> fx.GraphModule:
        """Return a module that computes the loss of some samples from outputs, labels and a count per cross-entropy."""
        graph = fx.Graph(tracer_cls=LossTracer)
        env = {node: graph.placeholder(name) for node, name in [*self.outputs.items(), *self.labels.items()]}
        counts = {node: graph.placeholder(f"count_{number}") for number, node in enumerate(self.counted)}
        anchor = env[next(iter(self.labels))]
        for node in self.nodes:
            if node.target is CTC:
                given = (fx.map_arg(each, env.__getitem__) for each in node.args)
                env[node] = graph.call_function(alignment, (*given, counts.get(node), anchor))
            elif node in counts:
                scores, targets, ignored, smoothing = (fx.map_arg(each, env.__getitem__) for each in _arguments(node))
                arguments = (scores, targets, ignored, smoothing, counts[node], anchor)
                env[node] = graph.call_function(entropy, arguments)
            else:
                env[node] = _copied(graph, node, env, anchor)
        for check in filter(self._reads_outputs, self.checks):
            _copy(graph, check, env, anchor)
        graph.output(env[self.loss])
        return fx.GraphModule(nn.Module(), graph, "Loss")

    def _reads_outputs(self, check: fx.Node) -> bool:
        nodes = _between(check.graph, check, {*self.outputs, *self.labels})
        return any(other in self.outputs for node in nodes for other in node.all_input_nodes)

    def counting(self) -> fx.GraphModule:
        """Return a module that counts the labels of a mini-batch that count in each cross-entropy, and checks labels.

        A sum over samples counts as one label. What the forward checks of labels is checked for the whole mini-batch.

        Raises:
            InvalidInput: the count depends on outputs.
        """
        graph = fx.Graph(tracer_cls=LossTracer)
        env = {node: graph.placeholder(name) for node, name in self.labels.items()}
        anchor = next(iter(env.values()))
        counts: list[Any] = []
        for check in self.checks:
            if not self._reads_outputs(check):
                _copy(graph, check, env, anchor)
        for each in self.counted:
            if each.target is CTC:
                counts.append(1)
                continue
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


def _computed_from(begins: Sequence[fx.Node], nodes: Iterable[fx.Node]) -> set[fx.Node]:
    # These nodes, and the ones that read nothing else.
    found = {*begins}
    for node in nodes:
        if is_anchor(node) or all(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def _checks_of(
    graph: fx.Graph, labels: Collection[str], outputs: Collection[fx.Node], inputs: Mapping[fx.Node, str]
) -> list[fx.Node]:
    # Checks of values that are computed from labels, and from nothing but outputs and inputs of the model.
    found: list[fx.Node] = []
    for check in (node for node in graph.nodes if "checks" in node.meta):
        nodes = _between(graph, check, {*outputs, *inputs})
        read = {inputs.get(other) for node in nodes for other in node.all_input_nodes}
        if not read.isdisjoint(labels) and all(node.op == "call_function" for node in nodes):
            found.append(check)
    return found


def _copy(graph: fx.Graph, end: fx.Node, env: dict[fx.Node, fx.Node], anchor: fx.Node) -> None:
    # Copies a node and all before it that `env` does not have.
    for node in _between(end.graph, end, {*env}):
        env[node] = _copied(graph, node, env, anchor)


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


def alignment(
    scores: Tensor,
    targets: Tensor,
    lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    reduction: str,
    zero_infinity: bool,
    count: Tensor | None,
    rows: Tensor,
) -> Tensor:
    """Return a CTC loss of some rows: a mean over them, or a sum, divided by the share that the rows are of all.

    Args:
        scores: log-probabilities, as all arguments up to `zero_infinity` those of `torch.nn.functional.ctc_loss`.
        targets: labels.
        lengths: of the scores.
        target_lengths: of the labels.
        blank: the label for nothing.
        reduction: `mean` or `sum`.
        zero_infinity: whether infinite losses count as zero.
        count: of a sum, 1 per sample of the mini-batch.
        rows: any tensor whose first dimension is these rows.
    """
    found = nn.functional.ctc_loss(scores, targets, lengths, target_lengths, blank, reduction, zero_infinity)
    return found if count is None else (found.double() / (count * len(rows))).to(found.dtype)


def count_labels(targets: Tensor, ignored: int) -> int:
    """Return how many labels count."""
    return int((targets != ignored).sum()) if not targets.is_floating_point() else len(targets)


class LossTracer(fx.Tracer):
    """Traces a cut loss once more, which is how torch unpickles a `GraphModule`. Its functions stay whole."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=(entropy, alignment, count_labels, *FUNCTIONS))
