"""A model's own loss, cut out of its forward: exact however the mini-batch is cut into micro-batches.

A cross-entropy is a mean over the labels that count: those that are not the ignored one (-100). Micro-batches hold
unequal numbers of them, so the mean over a mini-batch is not the mean of the micro-batches' means:

    loss of the mini-batch     sum over all labels / labels that count in the mini-batch
    loss of a micro-batch      sum over its labels / (labels that count in the mini-batch x its share of the samples)

The pipeline weighs a micro-batch's loss with its share of the samples, which leaves the first from the second.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import Input, Origin
from graphpipe.model.capture import trace
from graphpipe.model.skeleton import Skeleton
from graphpipe.model.torch_private import fake_mode, unflatten
from graphpipe.model.values import is_anchor

CROSS_ENTROPY = torch.ops.aten.cross_entropy_loss.default
MEANS = {"mse_loss": 2, "l1_loss": 2, "smooth_l1_loss": 2, "binary_cross_entropy_with_logits": 4}
"""Means over samples that all have the same number of terms, and the position of the argument that says so."""
PLAIN = {
    *("_to_copy", "to", "contiguous", "clone", "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose"),
    *("permute", "slice", "select", "pad", "constant_pad_nd", "clamp", "add", "sub", "mul", "div", "neg", "type_as"),
    *("detach", "alias", "lift_fresh_copy", "sym_size"),
}
"""What else a loss may do: arrange labels and scores, and combine means."""
MEAN = 1
IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLoss:
    """The loss of some samples, as the model's forward makes it of its outputs and of labels."""

    reads: tuple[str, ...]
    """The model's outputs it is made of."""
    labels: tuple[str, ...]
    """The other inputs it is made of."""
    formula: fx.GraphModule
    """Takes outputs, labels and, per cross-entropy, the labels that count per sample of the mini-batch."""
    counting: fx.GraphModule
    """Takes labels, returns how many count in each cross-entropy."""

    def targets(self, labels: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the targets of a whole mini-batch: its labels, and how many count per sample."""
        given = [labels[name] for name in self.labels]
        samples = len(given[0])
        counts = torch.tensor([float(count) / samples for count in self.counting(*given)], dtype=torch.float64)
        return {**{name: labels[name] for name in self.labels}, "counts": counts.expand(samples, -1)}

    def __call__(self, output: Any, targets: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of the samples of some rows of `targets`, for a pipeline that weighs it with their share."""
        outputs = [output[name] for name in self.reads]
        counts = targets["counts"][0].unbind() if targets["counts"].shape[1] else ()
        return self.formula(*outputs, *(targets[name] for name in self.labels), *counts)


def own_loss(
    module: nn.Module, inputs: Sequence[Input], labels: Sequence[str], origin: Origin
) -> tuple[OwnLoss, Origin]:
    """Return the loss that a module's forward computes when it is given labels, and how to capture the module again.

    Args:
        module: returns a dict (or a dataclass of Hugging Face) with the entry `loss`.
        inputs: of its forward, the labels among them.
        labels: names of inputs that are for the loss alone.
        origin: how the module is captured.

    Raises:
        InvalidInput: it returns no loss, cannot be traced, or makes its loss in a way that is not known to be a mean
            over labels or samples; then a loss function of one's own is the way out.
    """
    _, skeleton, origin = trace("export", module, tuple(inputs), origin, fake_mode())
    cut = _Cut.of(type(module).__name__, skeleton, labels)
    loss = OwnLoss(
        reads=tuple(cut.outputs.values()),
        labels=tuple(cut.labels.values()),
        formula=cut.formula(),
        counting=cut.counting(),
    )
    return loss, origin


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    # The nodes between a model's outputs and labels, and its loss.
    model: str
    loss: fx.Node
    nodes: list[fx.Node]
    outputs: dict[fx.Node, str]
    """Those the loss is made of; their names."""
    labels: dict[fx.Node, str]

    @staticmethod
    def of(model: str, skeleton: Skeleton, given: Collection[str]) -> "_Cut":
        (end,) = (node for node in skeleton.graph.nodes if node.op == "output")
        returned = unflatten(list(end.args[0]), skeleton.output_spec)  # pyright: ignore[reportArgumentType]
        if not isinstance(returned, Mapping) or not isinstance(returned.get("loss"), fx.Node):
            raise _refused(model, "does not return a loss for these labels")
        loss = returned["loss"]
        outputs = {node: name for name, node in returned.items() if isinstance(node, fx.Node) and node is not loss}
        inputs = {node: name for name, node in skeleton.inputs.items()}
        nodes = _between(skeleton.graph, loss, {*outputs, *inputs})
        read = {other for node in nodes if not is_anchor(node) for other in node.all_input_nodes}
        cut = _Cut(
            model=model,
            loss=loss,
            nodes=nodes,
            outputs={node: name for node, name in outputs.items() if node in read},
            labels={node: name for node, name in inputs.items() if node in read},
        )
        if not cut.outputs or not set(given) & {*cut.labels.values()}:
            raise _refused(model, "makes its loss of something else than outputs and labels")
        for node in nodes:
            if reason := _why_not(node):
                raise _refused(model, reason)
        return cut

    @property
    def entropies(self) -> list[fx.Node]:
        return [node for node in self.nodes if node.target is CROSS_ENTROPY]

    def formula(self) -> fx.GraphModule:
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


def _why_not(node: fx.Node) -> str:
    # Why a loss with this node may not be what the pipeline makes of micro-batches; empty if it is.
    if is_anchor(node):
        return ""
    if node.op != "call_function":
        return f"reads '{node.target}' in its loss"
    name = str(getattr(node.target, "overloadpacket", node.target)).rpartition(".")[2]
    given = dict(zip(("self", "target", "weight", "reduction"), node.args, strict=False)) | dict(node.kwargs)
    if node.target is CROSS_ENTROPY:
        if given.get("weight") is not None:
            return "weighs the classes in its loss"
        return "" if given.get("reduction", MEAN) == MEAN else "makes its loss with a cross-entropy that is no mean"
    if name in MEANS:
        said = node.args[MEANS[name]] if len(node.args) > MEANS[name] else node.kwargs.get("reduction", MEAN)
        return "" if said == MEAN else f"makes its loss with a {name} that is no mean"
    return "" if name in PLAIN else f"makes its loss with {name}, which is not known to keep a mean over samples"


def _refused(model: str, reason: str) -> InvalidInput:
    remedy = "Leave the labels out of the example, and write a loss function of the model's outputs."
    return InvalidInput(f"{model} {reason}", where="labels", remedy=remedy)


def _arguments(node: fx.Node) -> tuple[Any, Any, int, float]:
    # Scores, targets, the ignored label and label smoothing of a cross-entropy.
    names = ("self", "target", "weight", "reduction", "ignore_index", "label_smoothing")
    given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return given["self"], given["target"], given.get("ignore_index", IGNORED), given.get("label_smoothing", 0.0)


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
