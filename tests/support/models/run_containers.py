"""A model that returns a dataclass, and whose submodules pass dataclasses to each other."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.model import DagModule
from graphpipe.model.capture.capture import Method
from graphpipe.plans import Plan
from graphpipe.run import Pipeline

BATCH = 8


@dataclass
class Pair:
    """A dataclass that only a capture registers with PyTorch."""

    left: Tensor
    right: Tensor


class Unknown:
    """An object that PyTorch cannot look into."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Both(nn.Module):
    """Returns a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Pair:
        return Pair(self.left(x), right=torch.tanh(self.right(x)))


class Head(nn.Module):
    """Reads one dataclass by attribute, and returns another."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Linear(8, 3)

    def forward(self, pair: Pair) -> Pair:
        return Pair(self.top(pair.left * pair.right), pair.right)


class Last(nn.Module):
    """Returns an object that PyTorch cannot look into."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Linear(8, 3)

    def forward(self, pair: Pair) -> Unknown:
        return Unknown(self.top(pair.left))


class Chain(nn.Module):
    """The same submodules, called in a forward of its own."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.stem, self.both, self.head = parts

    def forward(self, x: Tensor) -> Pair:
        return self.head(self.both(self.stem(x)))


def declared(head: type[nn.Module] = Head) -> DagModule:
    """Return the model as a DagModule."""
    torch.manual_seed(0)
    parts = {"stem": nn.Linear(5, 8), "both": Both(), "head": head()}
    return DagModule(parts, inputs={"stem": ["x"], "both": ["stem"], "head": ["both"]})


def chained() -> Chain:
    """Return the model as an ordinary module."""
    return Chain(*declared().children())


def batch() -> tuple[dict[str, Tensor], Tensor]:
    """Return inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(BATCH, 5, generator=generator)}, torch.randint(0, 3, (BATCH,), generator=generator)


def loss(output: Pair, targets: Tensor) -> Tensor:
    """Read the output by attribute."""
    return nn.functional.cross_entropy(output.left, targets) + output.right.mean()


def plan(model: nn.Module, method: Method = "auto") -> Plan:
    """Return one stage per submodule. The last stage also puts the output together, with a value of `both`."""
    inputs, _ = batch()
    graph = gp.capture(model, inputs, method=method, opaque=() if method == "declared" else ("stem", "both", "head"))
    cluster = gp.Cluster.preset("local:3")
    names = [op.name for op in graph.ops]
    cuts = [names[:1], names[1:2], names[2:]]
    stages = [gp.HandStage(ops=tuple(ops), devices=(at,), micro_batch=2) for at, ops in enumerate(cuts)]
    costs = gp.estimate(graph, cluster)
    return gp.hand_plan(graph, costs, cluster, batch_size=BATCH, stages=stages, schedule="zb-h1")


def trained(kind: str) -> dict[str, Any]:
    """Take a step and evaluate; return the results of this rank."""
    model = declared() if kind == "declared" else chained()
    with Pipeline(plan(model, "declared" if kind == "declared" else "auto"), model, loss) as pipeline:
        value = pipeline.step(*batch())
        _, output = pipeline.evaluate(batch()[0])
        return {
            "loss": value,
            "gradients": dict(pipeline.gradients()),
            "type": type(output).__name__,
            "output": vars(output),
        }


def refused() -> str:
    """Evaluate a model that returns an object that PyTorch cannot look into, and return the error."""
    model = declared(Last)
    try:
        with Pipeline(plan(model, "declared"), model, lambda output, _: output.logits.mean()) as pipeline:
            pipeline.step(*batch())
            pipeline.evaluate(batch()[0])
    except gp.InvalidInput as error:
        return str(error)
    return ""
