"""Models without data: every plan gives the same initial weights, and a rank holds those of its own stages only."""

from pathlib import Path
from typing import Any

import pytest
import torch
from run_meta import Words, adam, meta_words, train_words, words_batch, words_plan
from run_ranks import run_ranks, values
from torch import Tensor, nn
from torch.nn import functional

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.run.initial_weights.init_weights import InitWeights


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Return the training in one process, in one stage."""
    return train_words(1)


@pytest.mark.parametrize(("stages", "degree"), [(3, 1), (2, 2)])
def test_one_process_fills_any_plan_alike(stages: int, degree: int, alone: dict[str, Any]) -> None:
    found = train_words(stages, degree)
    assert_same(found["initial"], alone["initial"])
    assert found["initial"].keys() == alone["initial"].keys()


@pytest.mark.parametrize(("stages", "degree"), [(2, 1), (4, 1), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_ranks_fill_their_own_tensors_with_the_same_bits(
    stages: int, degree: int, alone: dict[str, Any], tmp_path: Path
) -> None:
    ranks = values(run_ranks(train_words, stages * degree, tmp_path, stages, degree))
    operators = words_plan(stages, degree).stages
    for rank, found in enumerate(ranks):
        assert_same(found["initial"], alone["initial"])
        own = {name.split(".")[0] for name in found["initial"]} - ({"spare"} if rank == 0 else set())
        held = {op.split(".")[0] for op in operators[rank // degree].ops}
        tied = {"words", "score"} if held & {"words", "score"} else set[str]()
        assert own == held | tied | (
            {"norm"} if "recurrent" in held else set[str]()
        )  # the norm is part of that operator
        if degree == 1:  # with replicas, batch norm has statistics of fewer samples
            assert found["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert_same(found["state"], ranks[0]["state"])
    assert_same({"spare": ranks[-1]["state"]["spare.weight"]}, {"spare": alone["initial"]["spare.weight"]})


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare tensors bit for bit."""
    assert found
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def test_initial_weights_have_the_distributions_of_the_submodules(alone: dict[str, Any]) -> None:
    state, plain = alone["initial"], Words()
    assert float(state["words.weight"].std()) == pytest.approx(1.0, rel=0.2)  # that of the embedding, which is first
    torch.testing.assert_close(state["angles.weight"] @ state["angles.weight"].T, torch.eye(16), atol=1e-5, rtol=0)
    assert torch.equal(state["angles.table"], plain.angles.table)
    assert torch.equal(state["norm.inner.running_var"], torch.ones(6))
    for name in ("dense.0.weight", "recurrent.inner.weight_hh_l0"):
        assert float(state[name].std()) == pytest.approx(float(plain.state_dict()[name].std()), rel=0.2), name
    assert state["dense.0.weight"].flatten().unique().numel() > 500
    assert not torch.equal(state["dense.0.weight"].flatten()[:99], state["dense.2.weight"].flatten()[:99])


def test_the_generators_of_the_program_are_left_as_they_were() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_words(1, steps=0)
    assert torch.equal(torch.rand(3), expected)


def test_the_functions_of_the_user_fill_what_they_are_given() -> None:
    def fill(part: nn.Module) -> None:
        for each in [*part.parameters(recurse=False), *part.buffers(recurse=False)]:
            each.fill_(2.0)

    found = train_words(2, steps=0, weights=InitWeights(function=fill))
    assert all(bool((each == 2).all()) for name, each in found["initial"].items() if name != "angles.table")


def test_replaced_tensors_and_draws_of_their_own_are_taken_over() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Parameter(torch.empty(4, 4)) for _ in range(2))

        def reset_parameters(self) -> None:
            self.first = nn.Parameter(torch.randn(4, 4))
            if not self.second.is_meta:
                self.second.data = torch.randn(4, 4)

        def forward(self, values: Tensor) -> Tensor:
            return values @ self.first @ self.second

    with torch.device("meta"):
        own = Own()
        model = nn.Sequential(own, nn.Linear(4, 2))
    before = own.first
    with pipeline_of(model) as pipeline:
        assert before is own.first
        assert float(own.first.std()) > 0
        assert float(own.second.std()) > 0
        assert pipeline.step(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64)) > 0


def pipeline_of(model: Any, example: Tensor | None = None, **options: Any) -> gp.Pipeline:
    """Return a pipeline of a model in one stage."""
    graph, cluster = gp.capture(model, torch.randn(8, 4) if example is None else example), gp.Cluster.preset("local:1")
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8)
    return gp.Pipeline(plan, model, functional.cross_entropy, adam, options=gp.PipelineOptions(**options))


def test_a_weight_that_no_code_fills_is_refused_by_name() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, values: Tensor) -> Tensor:
            return values * self.scale

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), Bare(), nn.Linear(4, 2))
    with pytest.raises(InvalidInput, match=r"'1\.scale' is on the meta device, and Bare has no code.*reset_parameters"):
        pipeline_of(model)


def test_code_that_reads_values_of_other_ranks_is_named() -> None:
    class Peeking(nn.Linear):
        def reset_parameters(self) -> None:
            if not self.weight.is_meta:
                raise RuntimeError("cannot be filled here")

    with torch.device("meta"):
        model = nn.Sequential(Peeking(4, 2))
    with pytest.raises(InvalidInput, match="the code that fills the weights of '0' raised RuntimeError: cannot be"):
        pipeline_of(model)


def test_a_function_builds_a_model_whose_buffers_have_values() -> None:
    def build() -> nn.Module:
        class Shifted(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(4, 2)
                self.shift: Tensor
                self.register_buffer("shift", torch.arange(2.0), persistent=False)
                self.constant = torch.tensor(3.0)

            def forward(self, values: Tensor) -> Tensor:
                return self.inner(values) + self.shift * self.constant

        return Shifted()

    graph, cluster = gp.capture(build, torch.randn(8, 4)), gp.Cluster.preset("local:1")
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8)
    with gp.Pipeline(plan, build, functional.cross_entropy, adam) as pipeline:
        assert pipeline.step(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64)) > 2.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (nn.Linear, "is Linear, must be an nn.Module or a function that builds one. Write lambda: Linear"),
        (3, "is int, must be an nn.Module"),
        (lambda: 3, "returned int, must return an nn.Module"),
        (lambda: nn.Linear(4, 2).missing, "the function that builds the model raised"),
    ],
)
def test_what_builds_no_model_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        gp.capture(given, torch.randn(8, 4))


def test_a_model_of_real_data_keeps_it_and_frees_that_of_others(tmp_path: Path) -> None:
    first, second = values(run_ranks(train_real, 2, tmp_path))
    assert first["held"] == ["0.weight", "0.bias"]
    assert second["held"] == ["1.weight", "1.bias"]
    assert first["same"]
    assert second["same"]
    assert "an earlier pipeline of this model has freed it" in first["again"]
    torch.testing.assert_close(first["state"], second["state"], rtol=0, atol=0)


def train_real() -> dict[str, Any]:
    """Train a model with data on two ranks; return what this rank held, and what another plan then says."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    plans = [_plan(model, devices) for devices in ((0, 1), (1, 0))]
    with gp.Pipeline(plans[0], model, functional.cross_entropy, adam) as pipeline:
        held = {name: each for name, each in model.named_parameters() if not each.is_meta}
        same = all(torch.equal(each, before[name]) for name, each in held.items())
        pipeline.step(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64))
    try:
        gp.Pipeline(plans[1], model, functional.cross_entropy, adam)
        again = ""
    except InvalidInput as error:
        again = str(error)
    with gp.Pipeline(plans[0], model, functional.cross_entropy, adam) as pipeline:
        pipeline.sync_model()
    with gp.Pipeline(plans[1], model, functional.cross_entropy, adam) as pipeline:
        pipeline.step(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64))
        pipeline.sync_model()
    return {"held": [*held], "same": same, "again": again, "state": dict(model.state_dict())}


def _plan(model: nn.Module, devices: tuple[int, int]) -> gp.Plan:
    graph, cluster = gp.capture(model, torch.randn(8, 4)), gp.Cluster.preset("local:2")
    stages = [
        gp.HandStage(ops=(name,), devices=(device,), micro_batch=4)
        for name, device in zip(graph.order, devices, strict=True)
    ]
    return gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, stages=stages)


def test_meta_words_has_no_data() -> None:
    assert all(each.is_meta for each in [*meta_words().parameters(), *meta_words().buffers()])
    assert words_batch()[0].shape == (8, 6)
