"""Backends from outside, those that are missing, and stages that run on them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

import graphpipe as gp
from graphpipe.errors import InvalidInput
from graphpipe.model.backends import registry
from graphpipe.model.backends.backend import Backend, Region
from graphpipe.model.backends.registry import find_backend, register_backend
from graphpipe.plans.stage import BackendRegion
from graphpipe.plans.verify import verify

CALLS: list[int] = []


def compile_counting(module: fx.GraphModule, arguments: Sequence[Tensor]) -> Region:
    """Return the module's forward, which notes the samples of every call."""

    def run(*values: Tensor) -> object:
        CALLS.append(len(values[0]))
        return module(*values)

    return run


COUNTING = Backend(name="counting", kind="operators", compile=compile_counting)
ABSENT = Backend(name="absent", kind="graph", compile=compile_counting, missing=lambda: "its package is not installed")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Register two backends for one test."""
    CALLS.clear()
    with registry.BACKENDS.restored():
        for backend in (COUNTING, ABSENT):
            register_backend(backend)
        yield


def plan_of(module: nn.Module, regions: dict[str, tuple[int, int]] | None = None, *, inference: bool = True) -> gp.Plan:
    """Return a plan of one stage, with regions that are intervals of its operators."""
    graph = gp.capture(module, torch.zeros(4, 6))
    cluster = gp.Cluster.preset("local:1")
    stage = gp.HandStage(ops=graph.order, devices=(0,), micro_batch=4)
    costs = gp.estimate(graph, cluster)
    found = gp.hand_plan(graph, costs, cluster, batch_size=8, stages=[stage], inference=inference)
    cut = tuple(
        BackendRegion(backend=name.partition("-")[0], ops=found.stages[0].ops[first:stop])
        for name, (first, stop) in (regions or {}).items()
    )
    return replace(found, stages=(replace(found.stages[0], regions=cut),))


def model() -> nn.Module:
    """Return four layers."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)).eval()


def outputs(plan: gp.Plan, module: nn.Module) -> Tensor:
    """Return the answers to 11 samples: micro-batches of 4, 4 and 3."""
    rows = torch.randn(11, 6, generator=torch.Generator().manual_seed(5))
    with gp.InferencePipeline(plan, module) as pipeline:
        return torch.cat([each.outputs for each in pipeline.map([rows[:1], rows[1:]]) if each is not None])


def test_a_registered_backend_runs_its_regions_of_a_plan(tmp_path: Path) -> None:
    module = model()
    plan = plan_of(module, {"counting-1": (2, 4), "eager": (1, 2), "counting-0": (0, 1)})
    verify(plan)
    plan.save(tmp_path / "plan.json")
    plan = gp.Plan.load(tmp_path / "plan.json")
    assert torch.equal(outputs(plan, module), outputs(plan_of(module), module))
    assert CALLS == [4, 4, 4, 4]  # two regions; the last micro-batch has 3 samples and runs eagerly


def test_only_eager_regions_give_the_same_bits_and_no_regions_leave_the_fingerprint_alone() -> None:
    module = model()
    plain = plan_of(module)
    assert torch.equal(outputs(plan_of(module, {"eager-0": (0, 2), "eager-1": (2, 4)}), module), outputs(plain, module))
    assert plain.fingerprint != plan_of(module, {"eager": (0, 4)}).fingerprint
    assert plain.fingerprint == replace(plain, stages=(replace(plain.stages[0], regions=()),)).fingerprint


def test_a_backend_that_cannot_be_used_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"unknown backend 'inducter'\. Did you mean 'inductor'"):
        find_backend("inducter")
    with pytest.raises(InvalidInput, match="backend 'absent': cannot be used here: its package is not installed"):
        outputs(plan_of(model(), {"absent": (0, 4)}), model())
    with pytest.raises(InvalidInput, match="another backend has this name"):
        register_backend(replace(COUNTING, relative_tolerance=1.0))


def test_training_refuses_a_backend_without_backward_by_name() -> None:
    module = model()
    training = plan_of(module, {"counting": (0, 4)}, inference=False)
    with pytest.raises(InvalidInput, match="backend 'counting' of stage 's0' has no backward, and the plan trains"):
        gp.Pipeline(training, module, lambda output, targets: output.sum())


@pytest.mark.parametrize(
    ("regions", "part"),
    [
        ({"eager-0": (0, 2)}, "operator '2' is in 0 regions"),
        ({"eager-0": (0, 3), "eager-1": (2, 4)}, "operator '2' is in 2 regions"),
    ],
)
def test_regions_partition_their_stage(regions: dict[str, tuple[int, int]], part: str) -> None:
    with pytest.raises(InvalidInput, match=part):
        verify(plan_of(model(), regions))


def test_regions_that_read_from_each_other_are_refused() -> None:
    plan = plan_of(model())
    ops = plan.stages[0].ops
    crossed = tuple(BackendRegion(backend="eager", ops=each) for each in ((ops[0], ops[2]), (ops[1], ops[3])))
    with pytest.raises(InvalidInput, match="cannot run on its backends piece by piece"):
        verify(replace(plan, stages=(replace(plan.stages[0], regions=crossed),)))


@pytest.mark.parametrize("name", [name for name in registry.BACKENDS if name != "eager"])
def test_outputs_are_within_the_tolerance(name: str) -> None:
    if reason := registry.BACKENDS[name].missing():
        pytest.skip(reason)
    module = model()
    expected = outputs(plan_of(module), module)
    found = outputs(plan_of(module, {name: (0, 3), "eager": (3, 4)}), module)
    assert (found - expected).abs().max() <= registry.BACKENDS[name].relative_tolerance * expected.abs().max()
