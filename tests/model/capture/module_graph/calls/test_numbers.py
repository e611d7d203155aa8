"""Submodules that ask for numbers in a tensor. Their forwards stay whole, and run for real in training."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.model.capture.capture import capture
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.run import Pipeline


class Between(nn.Module):
    """A submodule between two linear layers, with numbers for it."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.first, self.between, self.last = nn.Linear(4, 4), between, nn.Linear(4, 2)

    def forward(self, x: Tensor, numbers: Tensor) -> Tensor:
        return self.last(self.between(self.first(x), numbers))


class Resized(nn.Module):
    """Adds a table that is resized to two numbers, as the positions of SigLIP 2 are."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.arange(9.0).view(1, 1, 3, 3))

    def forward(self, x: Tensor, numbers: Tensor) -> Tensor:
        found = torch.zeros_like(x)
        height, width = numbers[0].tolist()
        found[:, : height * width] = F.interpolate(self.table, size=(height, width))[0].reshape(1, -1)[0]
        return x + found


def test_a_number_that_a_submodule_asks_for_reaches_it() -> None:
    """Such an argument counted as unread, so another stage got zeros of its shape: SigLIP 2 failed in its first step.
    `F.interpolate` was refused, because it needs the number itself for what it costs."""
    torch.manual_seed(0)
    model, inputs = Between(Resized()), {"x": torch.randn(4, 4), "numbers": torch.full((4, 2), 2)}
    expected = model(**inputs).square().mean()
    expected.backward()
    wanted = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    graph = capture(model, inputs)
    assert graph.order[-1] == "last"
    cluster = Cluster.preset("local:3")
    stages = [HandStage(ops=(op,), devices=(number,), micro_batch=2) for number, op in enumerate(graph.order)]
    plan = hand_plan(graph, estimate(graph, cluster), cluster, batch_size=4, stages=stages)
    with Pipeline(plan, model, lambda output, _: output.square().mean()) as pipeline:
        assert pipeline.step(inputs, None) == pytest.approx(expected.item())
        for name, gradient in pipeline.gradients().items():
            torch.testing.assert_close(gradient, wanted[name], msg=name)
