"""Ranks that share each replica of a stage train as the whole model does in plain PyTorch, in double precision."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from exchanges import Exchange
from models_to_share import LENGTH, MODELS, VOCABULARY
from run_ranks import run_ranks, values
from run_tensor_parallel import (
    SAMPLES,
    Case,
    Cut,
    captured_of,
    plan_of,
    train,
    train_all,
    train_plainly,
)

import graphpipe as gp
from graphpipe.cluster.device import Link
from graphpipe.cluster.ring import Ring
from graphpipe.costs.ranks.rank_graph import rank_graph
from graphpipe.graph import ParameterSlice
from graphpipe.model.capture_file.capture_file import save_capture

GPT_TWO: Cut = [
    (["embedding", "layers.0*"], [0, 1], 2, 2),
    (["layers.1*", "head*"], [2, 3], 2, 1),
]
"""Two stages of two ranks each."""
GPT_REPLICAS: Cut = [(["*"], [0, 1, 2, 3], 2, 2)]
"""One stage: two replicas of two ranks."""
GPT_REVERSED: Cut = [(["*"], [1, 0, 3, 2], 2, 2)]
"""The first position of each replica is on the second of its ranks."""
GPT_UNEQUAL: Cut = [
    (["embedding", "layers.0*"], [0, 1], 2, 2),
    (["layers.1*", "head*"], [2], 1, 1),
]
"""Two ranks that share a stage, and one that does not."""
GROUPED_ONE: Cut = [(["*"], [0, 1, 2, 3], 2, 4)]
GROUPED_TWO: Cut = [
    (["embedding", "attention"], [0, 1], 2, 2),
    (["feed_forward", "last*", "head*"], [2, 3], 2, 2),
]
GROUPED_UNEQUAL: Cut = [
    (["embedding", "attention"], [0, 1], 2, 2),
    (["feed_forward", "last*", "head*"], [2], 1, 2),
]
CONVOLVED: Cut = [
    (["embedding*", "residual*"], [0, 1], 2, 4),
    (["inverted*", "head*"], [2, 3], 2, 4),
]
CASES = {
    "two stages": ("gpt", GPT_TWO),
    "replicas": ("gpt", GPT_REPLICAS),
    "unequal": ("gpt", GPT_UNEQUAL),
    "grouped queries": ("grouped", GROUPED_TWO),
    "tied, unequal": ("grouped", GROUPED_UNEQUAL),
    "split backward": ("gpt", GPT_TWO),
    "recomputed": ("gpt", GPT_TWO),
    "sequence": ("gpt", GPT_TWO),
    "sequence, unequal": ("gpt", GPT_UNEQUAL),
    "sequence, replicas": ("gpt", GPT_REPLICAS),
    "sequence, reversed": ("gpt", GPT_REVERSED),
    "alone": ("grouped", GROUPED_ONE),
    "sequence, alone": ("grouped", GROUPED_ONE),
    "sequence, grouped queries": ("grouped", GROUPED_TWO),
    "sequence, split backward": ("gpt", GPT_TWO),
    "sequence, recomputed": ("grouped", GROUPED_TWO),
    "adapted": ("adapted", GROUPED_TWO),
    "adapted, alone": ("adapted", GROUPED_ONE),
    "sequence, adapted": ("adapted", GROUPED_TWO),
    "convolved": ("convolved", CONVOLVED),
    "sequence, convolved": ("convolved", CONVOLVED),
    "logits": ("gpt", GPT_TWO),
    "logits, recomputed": ("grouped", GROUPED_TWO),
    "sequence, logits": ("grouped", GROUPED_ONE),
}
CHANGES: dict[str, dict[str, Any]] = {
    "split backward": {"schedule": "zb-h1"},
    "recomputed": {"recompute": "full"},
    "sequence, split backward": {"schedule": "zb-h1"},
    "sequence, recomputed": {"recompute": "full"},
    "logits": {"logits": True, "schedule": "zb-h1"},
    "logits, recomputed": {"logits": True, "recompute": "full"},
    "sequence, logits": {"logits": True},
}
"""Of the plans of some cases."""
LONG = {
    *("unequal", "split backward", "recomputed", "sequence", "sequence, reversed", "sequence, grouped queries"),
    *("adapted", "convolved", "logits"),
}
TRIED = [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in CASES]
"""`make test` leaves out cases whose parts others combine."""
ALONE = (
    *("two stages", "replicas", "alone", "sequence, alone", "sequence, replicas", "sequence, split backward"),
    *("sequence, logits", "adapted, alone"),
)
"""Cases that tests of their own are about. The first saves a checkpoint, from which others go on."""


def plan_case(name: str) -> gp.Plan:
    """Return the plan of a case."""
    model, cut = CASES[name]
    return plan_of(model, cut, sequence_parallel=name.startswith("sequence"), **CHANGES.get(name, {}))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the first case saves a checkpoint, from which a later one goes on."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, saved: Path
) -> dict[str, list[dict[str, Any]]]:
    """Return what every rank of every case of a selected test has computed: the ranks are started once."""
    calls = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    chosen = {call.params.get("case") for call in calls if call is not None}
    for model in MODELS:
        assert save_capture(captured_of(model), saved / model)

    def case(name: str, **changes: Any) -> Case:
        given: dict[str, Any] = {"plan": plan_case(name), "captured": str(saved / CASES[name][0])}
        return Case(name=CASES[name][0], checks=name in ("two stages", "sequence, logits"), **given, **changes)

    steps, more = str(saved / "steps"), str(saved / "more")
    cases = {"two stages": case("two stages", folder=steps)}
    cases |= {name: case(name) for name in CASES if name not in cases and (name in chosen or name in ALONE)}
    cases |= {
        "resumed": case("replicas", resume=steps),
        "clipped": case("grouped queries", options={"clip_norm": 0.5}),
        "dropout": case("grouped queries", dropout=0.5),
        "adapted, dropout": case("adapted", dropout=0.5),
        "sequence, dropout": case("sequence, grouped queries", dropout=0.5),
        "sharded state": case("replicas", resume=steps, options={"shard_optimizer": True}, folder=more),
    }
    if "sequence, resumed" in chosen:
        cases["sequence, resumed"] = case("sequence, replicas", resume=steps)
    by_rank = values(run_ranks(train_all, 4, tmp_path_factory.mktemp("ranks"), [*cases.values()]))
    return {name: [found[at] for found in by_rank] for at, name in enumerate(cases)}


@pytest.mark.parametrize("case", TRIED)
def test_ranks_that_share_layers_train_as_plain_pytorch(trained: dict[str, list[dict[str, Any]]], case: str) -> None:
    plain = train_plainly(CASES[case][0])
    for rank, found in enumerate(trained[case]):
        assert found["losses"] == pytest.approx(plain["losses"], rel=1e-12)
        assert found["norms"] == pytest.approx(plain["norms"], rel=1e-12)
        assert found["evaluated"] == pytest.approx(plain["evaluated"], rel=1e-12)
        for name, tensor in plain["state"].items():
            torch.testing.assert_close(found["state"][name], tensor, rtol=1e-11, atol=1e-12, msg=f"{rank} {name}")
        for name, gradient in found["gradients"].items():
            piece = ParameterSlice.parse(name)
            wanted = plain["gradients"][piece.parameter if piece else name]
            if gradient is None or wanted is None:  # it is frozen
                assert gradient is wanted
                continue
            wanted = wanted.narrow(piece.dimension, piece.start, piece.stop - piece.start) if piece else wanted
            torch.testing.assert_close(gradient, wanted, rtol=1e-11, atol=1e-13, msg=f"{rank} {name}")


LINKS = {
    "messages": Link(latency_seconds=1.0, bandwidth_bytes_per_second=1e30),
    "bytes": Link(latency_seconds=0.0, bandwidth_bytes_per_second=1.0),
    "nothing": Link(latency_seconds=0.0, bandwidth_bytes_per_second=1e30),
}


def counted_seconds(plan: gp.Plan, stage: int, link: Link) -> float:
    """Return the seconds of a device's tasks in a step over some links, and from summed gradients to new weights."""
    plan = replace(plan, cluster=plan.cluster.with_every_link(lambda _: link), prediction=None)
    task = plan.task_seconds(stage, plan.stages[stage].devices[0])
    return plan.micro_batches(stage) * (task.forward + task.backward) + plan.optimizer_seconds(stage)


@pytest.mark.parametrize("case", TRIED)
def test_costs_count_what_ranks_exchange(trained: dict[str, list[dict[str, Any]]], case: str) -> None:
    """Gathers at the ends of stages and sums of positions were once in no cost, and gathers of logits counted twice."""
    plan = plan_case(case)
    for number, stage in enumerate(plan.stages):
        team = stage.replicas[0]
        noted = [Exchange(*each) for each in trained[case][team[0]]["exchanged"]]
        inside = [each for each in noted if each.ranks == tuple(sorted(team)) and stage.tensor > 1]
        for name in ("messages", "bytes"):
            counted = counted_seconds(plan, number, LINKS[name]) - counted_seconds(plan, number, LINKS["nothing"])
            measured = sum(each.seconds(Ring(LINKS[name], stage.tensor)) for each in inside)
            flags = 8 * 15 if name == "bytes" else 0  # sums of positions also say which parameters have gradients
            assert 0 <= measured - counted + 1e-6 <= flags + 2e-6


def test_a_rank_holds_about_half_of_the_parameters(trained: dict[str, list[dict[str, Any]]]) -> None:
    # Norms, biases of rows and positions are whole. They are few in models that need several ranks.
    whole = sum(each.numel() for each in train_plainly("gpt")["gradients"].values())
    assert all(found["held"] <= 0.62 * whole for found in trained["replicas"])
    assert sum(found["held"] for found in trained["two stages"]) <= 2 * 0.62 * whole


def test_ranks_hold_parts_of_frozen_weights_and_of_their_adapters(trained: dict[str, list[dict[str, Any]]]) -> None:
    found, plan = trained["adapted, alone"][0], plan_case("adapted, alone")
    whole, part = (
        sum(op.parameter_bytes for op in graph.ops) - sum(tied.bytes for tied in graph.shared)
        for graph in (plan.graph, rank_graph(plan.graph, 2))
    )
    assert found["bytes"] == part < 0.57 * whole
    assert {name for name, each in found["gradients"].items() if "last.down." in name and each is not None} == {
        "last.down.down.weight[:, 0:12]",
        "last.down.up.weight",
    }


def test_adapters_of_columns_drop_the_same_values_and_those_of_rows_others(
    trained: dict[str, list[dict[str, Any]]],
) -> None:
    one, other = (found["dropped"] for found in trained["adapted, dropout"][2:])
    assert [torch.equal(one[at], other[at]) for at in range(4)] == [
        True,
        False,
        False,
        True,
    ]  # gate, inside, down, last
    gradients = [found["gradients"]["last.norm.weight"] for found in trained["adapted, dropout"][2:]]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("case", ["replicas", "alone"])
def test_ranks_that_divide_the_sequence_save_less(trained: dict[str, list[dict[str, Any]]], case: str) -> None:
    saved: dict[str, float] = {}
    for name in (case, f"sequence, {case}"):
        plan, found = plan_case(name), trained[name][0]["saved"]
        part = rank_graph(plan.graph, 2)
        saved[name] = found
        assert found == pytest.approx(SAMPLES * sum(op.work.saved_bytes_per_sample for op in part.ops), rel=0.10)
    assert saved[f"sequence, {case}"] < 0.9 * saved[case]


def test_a_loss_saves_the_logits_of_its_rank_alone(trained: dict[str, list[dict[str, Any]]]) -> None:
    # The softmax of all words, or half of it, beside what belongs to each label.
    labels, whole = SAMPLES * LENGTH, trained["alone"][0]["saved by loss"]
    assert whole >= labels * VOCABULARY * 8
    assert trained["sequence, logits"][0]["saved by loss"] <= labels * (VOCABULARY / 2 * 8 + 32)


def test_ranks_drop_other_values_everywhere_where_they_divide_the_sequence(
    trained: dict[str, list[dict[str, Any]]],
) -> None:
    one, other = (found["dropped"] for found in trained["sequence, dropout"][2:])
    assert len(one) == len(other) > 4
    assert all(each.shape[1] == LENGTH / 2 for each in (one[1], other[1]))  # behind the layers there are shards
    assert not any(torch.equal(one[at], other[at]) for at in range(4))
    gradients = [found["gradients"]["last.norm.weight"] for found in trained["sequence, dropout"][2:]]
    assert torch.equal(*gradients)  # although each rank had those of its positions


@pytest.mark.parametrize("case", ["resumed", pytest.param("sequence, resumed", marks=pytest.mark.slow)])
def test_a_checkpoint_of_shared_layers_continues_under_another_plan(
    trained: dict[str, list[dict[str, Any]]], saved: Path, case: str
) -> None:
    plain = train_plainly("gpt", 4)
    assert trained[case][0]["losses"] == pytest.approx(plain["losses"][2:], rel=1e-12)
    alone = train(Case(name="gpt", plan=plan_of("gpt", GPT_UNEQUAL), resume=str(saved / "steps")))
    assert alone["losses"] == pytest.approx(plain["losses"][2:], rel=1e-12)


def test_gradients_are_clipped_by_the_norm_of_the_whole_model(trained: dict[str, list[dict[str, Any]]]) -> None:
    plain = train_plainly("grouped", 2, 0.5)
    for found in trained["clipped"]:
        assert found["norms"] == pytest.approx(plain["norms"], rel=1e-6)  # the factor is in single precision
        torch.testing.assert_close(found["state"]["last.down.weight"], plain["state"]["last.down.weight"])


def test_backwards_of_shared_layers_are_split(trained: dict[str, list[dict[str, Any]]]) -> None:
    assert [found["backwards"] for found in trained["sequence, split backward"]] == [
        {},
        {},
        {"s1": "split"},
        {"s1": "split"},
    ]


def test_ranks_drop_other_values_inside_what_they_share_and_the_same_behind_it(
    trained: dict[str, list[dict[str, Any]]],
) -> None:
    one, other = (found["dropped"] for found in trained["dropout"][2:])
    assert len(one) == len(other) > 4
    for inside, behind in ((0, 1), (2, 3)):
        assert not torch.equal(one[inside], other[inside])
        assert torch.equal(one[behind], other[behind])
    states = [found["gradients"]["last.norm.weight"] for found in trained["dropout"][2:]]
    assert torch.equal(*states)


def test_replicas_of_shared_layers_shard_the_state_of_the_optimizer(
    trained: dict[str, list[dict[str, Any]]], saved: Path
) -> None:
    plain = train_plainly("gpt", 6)
    assert trained["sharded state"][0]["losses"] == pytest.approx(plain["losses"][2:4], rel=1e-12)
    alone = train(Case(name="gpt", plan=plan_of("gpt", GPT_TWO), resume=str(saved / "more")))
    assert alone["losses"] == pytest.approx(plain["losses"][4:], rel=1e-12)


def test_one_process_computes_the_whole_model() -> None:
    found, plain = train(Case(name="gpt", plan=plan_of("gpt", GPT_TWO))), train_plainly("gpt")
    assert found["losses"] == pytest.approx(plain["losses"], rel=1e-12)
    assert {*found["gradients"]} == {*plain["gradients"]}
