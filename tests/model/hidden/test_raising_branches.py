"""Forwards that check values: `if labels.max() >= size: raise` in CTC models was refused with "use torch.where"."""

import pytest
import torch
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.errors import InvalidInput
from graphpipe.model.capture.capture import capture
from graphpipe.planning.hand_plan import HandStage, hand_plan
from graphpipe.run import Pipeline


class Checked(nn.Module):
    """Checks its inputs, and values between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x is not None and x.max() >= 30:
            raise ValueError(f"{x.shape[1]} values of up to 30")
        hidden = self.first(x).tanh()
        assert torch.isfinite(hidden).all()
        if not (hidden.abs() <= 1).all() or (x < -30).any():
            size = x.shape[1]
            raise ValueError(f"{size} is too small: {x.min()}")
        return self.second(hidden)


class Branching(nn.Module):
    """Computes something else for some values."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(4, 4), kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "raises elsewhere":
            if x.max() > 3:
                x = self.halved(x)
        elif x.max() > 3:
            x = x / 2
        return self.layer(x)

    def halved(self, x: Tensor) -> Tensor:
        raise ValueError("not by the branch itself")


def test_checks_hold_in_every_step_and_raise_what_the_forward_raises() -> None:
    torch.manual_seed(0)
    model, x, targets = Checked(), torch.randn(8, 4), torch.randint(3, (8,))
    graph, cluster = capture(model, x), Cluster.preset("local:2")
    assert [op.name for op in graph.ops] == ["first", "second"]
    stages = [HandStage(ops=(op.name,), devices=(at,), micro_batch=2) for at, op in enumerate(graph.ops)]
    plan = hand_plan(graph, estimate(graph, cluster), cluster, batch_size=8, stages=stages)
    expected = nn.functional.cross_entropy(model(x), targets).item()
    with Pipeline(plan, model, nn.functional.cross_entropy) as pipeline:
        assert pipeline.step(x, targets) == pytest.approx(expected)
        for wrong, message in (
            (40.0, "4 values of up to 30"),
            (-50.0, "because of `not (hidden.abs() <= 1).all() or (x < -30).any()`"),
            (float("nan"), "because of `torch.isfinite(hidden).all()`"),
        ):
            with pytest.raises(InvalidInput) as refused:
                pipeline.step(torch.cat([x[:7], x[7:] + wrong]), targets)
            assert message in str(refused.value)


@pytest.mark.parametrize("kind", ["computes", "raises elsewhere"])
def test_branches_that_compute_something_else_are_refused(kind: str) -> None:
    with pytest.raises(InvalidInput, match="decides by the values in a tensor"):
        capture(Branching(kind), torch.randn(8, 4))
