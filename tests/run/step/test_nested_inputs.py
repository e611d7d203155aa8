"""Models that take a dict, a dataclass, None and numbers are trained as in plain PyTorch."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphpipe as gp
from tests.support.programs.plain_training import cut_plan

pytestmark = pytest.mark.timeout(60)


@dataclass
class Views:
    left: Tensor
    right: Tensor
    weight: float = 0.5


class Net(nn.Module):
    """Takes {"views": Views, "words": [ids, positions], "mask": None or a tensor, "mode": text}."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.left, self.right, self.words = nn.Linear(6, 8), nn.Linear(4, 8), nn.Embedding(10, 8)
        self.head = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3))

    def forward(self, batch: dict[str, Any], temperature: float = 1.0) -> Tensor:
        views, (ids, _) = batch["views"], batch["words"]
        text = self.words(ids)
        if batch["mask"] is not None:
            text = text * batch["mask"][..., None]
        found = self.left(views.left).tanh() + views.weight * self.right(views.right).tanh() + text.mean(1)
        return self.head(found) / (temperature if batch["mode"] == "train" else 1.0)


def batch(seed: int, *, masked: bool, samples: int = 8) -> tuple[dict[str, Any], Tensor]:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(10, (samples, 5), generator=draw)
    return {
        "views": Views(torch.randn(samples, 6, generator=draw), torch.randn(samples, 4, generator=draw)),
        "words": [ids, torch.arange(5).expand(samples, 5)],
        "mask": torch.ones(samples, 5) if masked else None,
        "mode": "train",
    }, torch.randint(3, (samples,), generator=draw)


@pytest.mark.parametrize("masked", [False, True])
def test_nested_inputs_are_trained(masked: bool) -> None:
    piped, loss = Net(), nn.functional.cross_entropy
    plain = copy.deepcopy(piped)
    graph = gp.capture(piped, batch(0, masked=masked)[0])
    assert [given.name for given in graph.inputs][:3] == ["batch.views.left", "batch.views.right", "batch.words.0"]
    plan = cut_plan(graph, batch_size=8, micro_batch=2, cut=2)
    assert gp.check(plan, piped, loss, *batch(0, masked=masked)).equal
    updates = torch.optim.SGD(plain.parameters(), lr=0.1)
    with gp.Pipeline(plan, piped, loss, lambda p: torch.optim.SGD(p, lr=0.1)) as pipe:
        for seed in range(3):
            inputs, targets = batch(seed, masked=masked)
            updates.zero_grad()
            expected = loss(plain(inputs), targets)
            expected.backward()
            updates.step()
            assert pipe.step({"batch": inputs} if seed else inputs, targets) == pytest.approx(expected.item(), rel=1e-5)
        inputs, _ = batch(9, masked=masked, samples=5)
        targets = torch.zeros(5, dtype=torch.long)
        torch.testing.assert_close(pipe.evaluate(inputs)[1], plain(inputs), rtol=1e-4, atol=1e-5)
        with pytest.raises(gp.InvalidInput, match=r"input 'batch.mode': it is 'test', in the example it is 'train'"):
            pipe.step({**inputs, "mode": "test"}, targets)
    for one, other in zip(piped.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_other_shapes_of_nested_inputs_are_captured_again() -> None:
    model = Net()
    graph = gp.capture(model, {"batch": batch(0, masked=False)[0], "temperature": 2.0})
    assert graph.origin is not None
    assert ("temperature", 2.0) in [(part.path[0], part.value) for part in graph.origin.parts]
    inputs, targets = batch(3, masked=False)
    inputs["words"] = [torch.randint(10, (8, 7)), torch.arange(7).expand(8, 7)]
    with gp.Pipeline(cut_plan(graph, batch_size=8, micro_batch=4, cut=2), model, nn.functional.cross_entropy) as pipe:
        expected = nn.functional.cross_entropy(model(inputs, temperature=2.0), targets).item()
        assert pipe.step({"batch": inputs, "temperature": 2.0}, targets) == pytest.approx(expected, rel=1e-5)


def test_a_plan_in_a_file_keeps_the_containers(tmp_path: Any) -> None:
    model, loss = Net(), nn.functional.cross_entropy
    graph = gp.capture(model, batch(0, masked=True)[0])
    plan = cut_plan(graph, batch_size=8, micro_batch=2)
    plan.save(tmp_path / "plan.json")
    loaded = gp.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    with gp.Pipeline(loaded, model, loss) as pipe:
        inputs, targets = batch(1, masked=True)
        assert pipe.step(inputs, targets) == pytest.approx(loss(model(inputs), targets).item(), rel=1e-5)


def test_what_a_rank_needs_is_named_by_path() -> None:
    model = Net()
    graph = gp.capture(model, batch(0, masked=False)[0])
    with gp.Pipeline(cut_plan(graph, batch_size=8, micro_batch=2), model, nn.functional.cross_entropy) as pipe:
        needs = pipe.needs()
        assert "batch.words.0" in needs.inputs
        inputs, targets = batch(1, masked=False)
        expected = nn.functional.cross_entropy(model(inputs), targets).item()
        share = needs.cut(range(8), inputs, targets)
        assert pipe.step(share) == pytest.approx(expected, rel=1e-5)


class Declared(nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["a"] + batch["b"]


def test_a_submodule_of_a_dag_may_take_a_container() -> None:
    dag = gp.DagModule({"join": Declared(), "out": nn.Linear(3, 2)}, inputs={"join": ["batch"], "out": ["join"]})
    inputs = {"batch": {"a": torch.randn(4, 3), "b": torch.randn(4, 3)}}
    graph = gp.capture(dag, inputs)
    with gp.Pipeline(cut_plan(graph, batch_size=4, micro_batch=2), dag, lambda out, _: out.square().mean()) as pipe:
        assert pipe.step(inputs) == pytest.approx(dag(**inputs).square().mean().item(), rel=1e-5)
    with pytest.raises(gp.InvalidInput, match="a declared graph takes tensors only"):
        gp.capture(dag, inputs, method="declared")
