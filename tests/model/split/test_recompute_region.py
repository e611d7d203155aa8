"""Regions of a stage compute the same with the same parameters, as submodules that can be recomputed."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs import Recompute
from graphpipe.costs.analytic import estimate
from graphpipe.model.capture.capture import capture
from graphpipe.model.split.recompute_region import recompute_regions
from graphpipe.model.split.split import split
from graphpipe.model.stage_program import StageProgram
from graphpipe.model.zoo.registry import zoo_model
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.plans import Plan


def whole(module: nn.Module, inputs: dict[str, Tensor], recompute: Recompute) -> tuple[StageProgram, Plan]:
    """Return the program of a plan of one stage."""
    graph, cluster = capture(module, inputs), Cluster.resolve("local:1")
    stage = HandStage(ops=("*",), devices=(0,), micro_batch=2, recompute=recompute)
    plan = hand_plan(graph, estimate(graph, cluster), cluster, batch_size=2, stages=[stage])
    return split(module, plan)[0], plan


@pytest.mark.parametrize(
    "name",
    [
        "gpt-small",
        *(pytest.param(f"{name}-small", marks=pytest.mark.slow) for name in ("dlrm", "mmt", "two-tower")),
    ],
)
def test_a_program_with_regions_computes_the_same_with_the_same_parameters(name: str) -> None:
    model = zoo_model(name)
    inputs, _ = model.batch(torch.Generator().manual_seed(0), 2)
    _, plan = whole(model.module, inputs, "none")
    recompute = tuple(op for op in plan.graph.order if plan.graph[op].parameters)[::2]
    expected = replace(plan, stages=(replace(plan.stages[0], recompute=recompute),))
    plain, folded = (split(model.module, each)[0] for each in (plan, expected))
    assert {region.name for region in recompute_regions(folded.module)} == set(recompute)
    assert sorted(plain.parameter_names.values()) == sorted(folded.parameter_names.values())
    results: list[Any] = []
    for program in (plain, folded):
        torch.manual_seed(1)
        results.append(program(inputs)[1])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_a_submodule_of_several_operators_is_one_region() -> None:
    model = zoo_model("gpt-small")
    inputs, _ = model.batch(torch.Generator().manual_seed(0), 2)
    program, _ = whole(model.module, inputs, ("layers.1", "layers.3.attention"))
    found = {region.name: region for region in recompute_regions(program.module)}
    assert found.keys() == {"layers.1", "layers.3.attention"}
    owned = {program.parameter_names[name] for name, _ in program.module.named_parameters() if "region_0" in name}
    assert owned == {name for name, _ in model.module.named_parameters() if name.startswith("layers.1.")}


def test_a_copy_of_a_program_has_other_regions() -> None:
    model = zoo_model("gpt-small")
    inputs, _ = model.batch(torch.Generator().manual_seed(0), 2)
    program, _ = whole(model.module, inputs, ("layers.1",))
    copied = program.replicate()
    (one,), (other,) = recompute_regions(program.module), recompute_regions(copied.module)
    assert one is not other
    assert not {id(p) for p in one.parameters()} & {id(p) for p in other.parameters()}
    torch.testing.assert_close(copied(inputs)[1], program(inputs)[1], rtol=0, atol=0)
