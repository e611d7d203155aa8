"""The operators that a plan splits are chosen by its step, for every planner alike."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

import graphpipe as gp
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.graph import Graph, split_ops
from graphpipe.model.zoo.registry import zoo
from graphpipe.planners.registry import planner_names

CLUSTER = gp.Cluster.preset("summit:2x4")
OP = "top.layers.layer0"


@cache
def graph() -> Graph:
    return gp.capture(*zoo("candle-uno", branches=3, layers=1))


@cache
def planned(split: str | tuple[str, ...], planner: str, cluster: gp.Cluster = CLUSTER) -> gp.Plan:
    return gp.plan(graph(), gp.estimate(graph(), cluster), cluster, batch_size=256, planner=planner, split=split)  # pyright: ignore[reportArgumentType]


def seconds(plan: gp.Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.step_seconds


@pytest.mark.parametrize("planner", planner_names(trains=True))
def test_auto_takes_the_shorter_step_and_never_a_longer_one(planner: str) -> None:
    plain, split, chosen = (planned(choice, planner) for choice in ("none", (OP,), "auto"))
    assert plain.graph == graph()
    assert split.graph == split_ops(graph(), [OP])
    assert seconds(chosen) == min(seconds(plain), seconds(split))


def test_a_split_that_pays_only_where_devices_are_shared_is_found() -> None:
    """Splits were compared without sharing. On two devices, plans were up to 25 % slower than the best of all."""
    small = gp.capture(*zoo("candle-uno", branches=2, layers=1, top_layers=1, width=2048))
    two = gp.Cluster.preset("summit:1x2")
    steps = {
        (split, most): seconds(
            gp.plan(
                small,
                gp.estimate(small, two),
                two,
                batch_size=12,
                schedule="1f1b",
                split=split,  # pyright: ignore[reportArgumentType]
                stages_per_device=most,
            )
        )
        for split in ("none", "auto")
        for most in (1, 4)
    }
    assert steps["auto", 1] == steps["none", 1]
    assert steps["auto", 4] < 0.9 * steps["none", 4]


def test_the_graph_planner_gains_from_the_split() -> None:
    assert seconds(planned("auto", "graphpipe")) < seconds(planned("none", "graphpipe")) / 1.3


def test_a_model_that_only_fits_with_its_layer_split_is_planned() -> None:
    (kind,) = CLUSTER.device_types
    # The first layer above the branches has 201 MB of weights, and four times that of state. If replicas share its
    # state, each needs at least twice the weights.
    small = replace(CLUSTER, device_types=(replace(kind, memory_bytes=0.39e9),))
    with pytest.raises(Infeasible):
        planned("none", "graphpipe", small)
    found = planned("auto", "graphpipe", small)
    assert found.graph.origin is not None
    assert [split.op for split in found.graph.origin.split_ops] == [OP]


def test_a_layer_larger_than_a_device_is_split_by_its_outputs() -> None:
    bags = gp.capture(*zoo("dlrm", sparse_branches=1, dense_branches=1, layers=1, top_layers=1, width=64))
    (kind,) = CLUSTER.device_types
    # The bag has 256 MB of weights, and four times that of state. If replicas share its state, each needs at least
    # twice the weights.
    small = replace(CLUSTER, device_types=(replace(kind, memory_bytes=0.24e9),))
    found = gp.plan(bags, gp.estimate(bags, small), small, batch_size=64, split="auto")
    assert found.graph.origin is not None
    assert [split.parts for split in found.graph.origin.split_ops][-1] == tuple(f"bag0.part{n}" for n in range(4))


@pytest.mark.slow
@pytest.mark.parametrize(("width", "by"), [(1, ["rows"] * 3), (2, ["outputs", "rows"])])
def test_a_narrow_table_is_split_by_its_rows_where_its_columns_are_too_few(width: int, by: list[str]) -> None:
    table = gp.capture(nn.Sequential(nn.EmbeddingBag(1_000_000, width), nn.Linear(width, 1)), torch.zeros(4, 3).long())
    (kind,) = CLUSTER.device_types
    # Of 4 MB of weights, a part on d devices needs its share of the weights and gradients, and 1/d of its two moments:
    # 9 MB whole on 8 devices, 5 MB in 2 parts on 4 each, 3 MB in 4 parts on 2 each, 2 MB in 8 parts.
    for way, parts, megabytes in zip(by, (2, 4, 8), (7, 4, 2.5), strict=False):
        small = replace(CLUSTER, device_types=(replace(kind, memory_bytes=megabytes * 1e6 * width),))
        found = gp.plan(table, gp.estimate(table, small), small, batch_size=8, split="auto")
        assert found.graph.origin is not None
        assert [(split.by, len(split.parts)) for split in found.graph.origin.split_ops] == [(way, parts)]


def test_a_plan_with_split_operators_survives_its_file_and_is_planned_again(tmp_path: object) -> None:
    plan = planned((OP,), "graphpipe")
    plan.save(f"{tmp_path}/plan.json")
    loaded = gp.Plan.load(f"{tmp_path}/plan.json")
    assert (loaded, loaded.fingerprint) == (plan, plan.fingerprint)
    again = gp.plan(loaded.graph, loaded.costs, CLUSTER, batch_size=256, split=[OP])  # as after a host has gone
    assert again.stages == plan.stages


def test_hand_written_stages_name_the_parts() -> None:
    stages = [
        gp.HandStage(ops=(f"branch{n}.*", f"{OP}.linear.part{n}"), devices=(n,), micro_batch=64) for n in range(3)
    ]
    stages.append(gp.HandStage(ops=(OP, "top.layers.layer1", "top.growth"), devices=(3,), micro_batch=64))
    costs = gp.estimate(graph(), CLUSTER)
    found = gp.hand_plan(graph(), costs, CLUSTER, batch_size=256, stages=stages, split=OP)
    assert [len(stage.ops) for stage in found.stages] == [2, 2, 2, 3]
    with pytest.raises(InvalidInput, match="'auto' does not work with hand-written stages"):
        gp.hand_plan(graph(), costs, CLUSTER, batch_size=256, stages=stages, split="auto")


def test_an_operator_that_cannot_be_split_is_refused_by_name() -> None:
    with pytest.raises(
        InvalidInput, match=f"operator 'top.growth' cannot be split by its inputs. Operators that can be split: {OP}"
    ):
        planned(("top.growth",), "graphpipe")
