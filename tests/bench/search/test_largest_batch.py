"""The largest micro-batch that fits: brute force over the sizes, and ratios between planners."""

from typing import Any

import pytest

import graphpipe as gp
from bench.case import summit
from bench.search.largest_batch import DEVICES, MICRO_BATCHES, PLANNERS, SIZES, largest, ratios
from bench.search.memory_models import MODELS
from graphpipe.model.zoo import gpt
from graphpipe.plans.device_memory import memory_shortfall

MOST = 35


@pytest.fixture(scope="module")
def graph() -> gp.Graph:
    """Return a language model of such long texts that few fit in the memory of a V100."""
    built = gpt.build(gpt.GptShape(layers=4, sequence=8192, hidden=1024, heads=16, vocabulary=1000), "meta")
    return gp.capture(built.module, built.example_inputs)


def fits(graph: gp.Graph, name: str, size: int) -> bool:
    cluster = summit(DEVICES)
    batch = MICRO_BATCHES * size
    try:
        gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=batch, micro_batch=size, **PLANNERS[name])
    except gp.Infeasible:
        return False
    return True


def test_largest_size_is_that_of_trying_all(graph: gp.Graph):
    found = {name: largest(graph, name) for name in PLANNERS}
    for name in ("dawnpiper", "vpipe", "pipedream", "gpipe"):
        each = found[name]
        assert each is not None
        size, plan = each
        assert size == max(one for one in SIZES if one <= MOST and fits(graph, name, one)) < MOST
        assert {stage.micro_batch for stage in plan.stages} == {size}
        assert memory_shortfall(plan) <= 0
    sizes = {name: each[0] if each else 0 for name, each in found.items()}
    assert sizes["graphpipe"] >= sizes["vpipe"] > sizes["pipedream"]


def test_ratios_are_the_most_over_all_models():
    rows: list[dict[str, Any]] = [
        {"model": model, "planner": name, "largest": 12 if (model, name) == ("T5-base", "dawnpiper") else 4}
        for model in MODELS
        for name in PLANNERS
        if (model, name) != ("BERT-large", "gpipe")
    ]
    rows.append({"model": "BERT-large", "planner": "gpipe", "largest": 0})  # nothing fits: counts as 1
    found = ratios(rows)
    assert found["dawnpiper_over_vpipe"] == 3
    assert found["graphpipe_over_gpipe"] == 4
    assert found["graphpipe_over_pipedream"] == 1
