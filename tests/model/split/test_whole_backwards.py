"""The backwards that cannot be split are found without computing, and are those that the runtime finds."""

from dataclasses import replace

import pytest
import torch
from run_splits import CalledTwice
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.model.split.whole_backwards import whole_backwards


class Model(nn.Module):
    """A chain whose third part calls a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), CalledTwice(8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.second(self.first(x)))
        return {"logits": self.norm(self.third(hidden)), "hidden": hidden}


def planned(model: nn.Module, schedule: str) -> gp.Plan:
    graph = gp.capture(model, {"x": torch.randn(4, 8)}, opaque=[name for name, _ in model.named_children()])
    cluster = gp.Cluster.preset("local:4")
    stages = [gp.HandStage(ops=(op,), devices=(at,), micro_batch=2) for at, op in enumerate(graph.order)]
    costs = gp.estimate(graph, cluster)
    return gp.hand_plan(graph, costs, cluster, batch_size=8, stages=stages, schedule=schedule)


def test_stages_that_cannot_be_split_are_found_and_the_model_does_not_change() -> None:
    model = Model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plan = planned(model, "zb-h1")
    names = [stage.ops[0] for stage in plan.stages]
    assert whole_backwards(plan, model) == {names.index("third"): "several operations use one parameter"}
    chosen = gp.choose_backwards(plan, model)
    assert [stage.ops[0] for stage in chosen.stages if stage.backward == "whole"] == ["third"]
    assert chosen.prediction is not None
    assert plan.prediction is not None
    assert chosen.prediction.step_seconds != plan.prediction.step_seconds
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_plan_does_not_change_if_all_backwards_can_be_split_or_the_schedule_does_not_split() -> None:
    model = Model()
    plan = planned(model, "1f1b")
    assert gp.choose_backwards(plan, model) is plan
    simple = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    halves = replace(planned(simple, "zb-h1"), prediction=None)
    assert gp.choose_backwards(halves, simple) is halves


def test_another_model_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the plan was made for another model"):
        gp.choose_backwards(planned(Model(), "zb-h1"), nn.Sequential(nn.Linear(8, 8)))


def test_a_plan_file_keeps_the_choice(tmp_path) -> None:
    model = Model()
    chosen = gp.choose_backwards(planned(model, "zb-h1"), model)
    chosen.save(tmp_path / "plan.json")
    assert [stage.backward for stage in gp.Plan.load(tmp_path / "plan.json").stages] == [
        s.backward for s in chosen.stages
    ]
