"""A stage that recomputes its forwards trains, bit for bit, like a stage that keeps their saved tensors."""

import copy
import gc
import weakref
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from run_chain import BATCH, INTERLEAVED, chain, chain_batch, chain_pipeline, train_chain
from run_models import cross_entropy
from run_plans import hand_split, plan_of
from run_ranks import run_ranks, values
from torch import Tensor, nn

from graphpipe.costs import Recompute
from graphpipe.errors import InvalidInput
from graphpipe.model.split.recompute_region import RecomputeRegion
from graphpipe.run import Pipeline
from graphpipe.run.stage.recompute import Recomputation, RegionRecomputation

REPLICATED = [(["a"], [0, 1], 4), (["b", "c"], [2, 3], 4), (["d"], [0], 8)]
TOGETHER = [(["a", "b", "c"], [0], 2), (["d"], [1], 2)]
CUTS = {"interleaved": INTERLEAVED, "replicated": REPLICATED, "together": TOGETHER}
EVERY = [
    ("interleaved", dict.fromkeys(range(4), "full")),
    ("replicated", dict.fromkeys(range(3), "full")),
    ("replicated", {0: ("a",), 1: ("b", "c"), 2: ("d",)}),
    ("together", {0: ("b",), 1: ("d",)}),
    ("together", {0: ("a", "c")}),
    ("together", {0: ("a", "b", "c"), 1: "full"}),
]


@cache
def keeping(cut: str, schedule: str) -> dict[str, Any]:
    return train_chain(CUTS[cut], schedule)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize(("cut", "recompute"), EVERY)
def test_recomputation_does_not_change_results(cut: str, recompute: dict[int, Recompute], schedule: str) -> None:
    kept = keeping(cut, schedule)
    recomputed = train_chain(CUTS[cut], schedule, recompute)
    assert recomputed["losses"] == kept["losses"]
    for what in ("gradients", "state"):  # BatchNorm's statistics and the count of calls are in the state
        assert recomputed[what].keys() == kept[what].keys()
        for name, tensor in kept[what].items():
            assert torch.equal(recomputed[what][name], tensor), name
    assert "b.2.running_mean" in kept["state"]
    assert kept["state"]["c.0.calls"] > 1


def test_two_ranks_train_like_one(tmp_path: Path) -> None:
    recompute: dict[int, Recompute] = {0: ("a", "c"), 1: "full"}
    single = train_chain(TOGETHER, "1f1b", recompute)
    for rank in values(run_ranks(train_chain, 2, tmp_path, TOGETHER, "1f1b", recompute)):
        assert rank["losses"] == single["losses"]
        for what in ("gradients", "state"):
            assert all(torch.equal(tensor, single[what][name]) for name, tensor in rank[what].items())


@pytest.mark.parametrize("how", ["full", ("b",)])
def test_only_recomputed_operators_run_twice(how: Recompute) -> None:
    calls: list[str] = []
    pipeline, model = chain_pipeline(INTERLEAVED, recompute={1: how})
    pipeline.step(*chain_batch())  # the first step computes more, to find what mixes samples
    for name in ("a", "b", "c", "d"):
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    pipeline.step(*chain_batch())
    assert {name: calls.count(name) for name in "abcd"} == {"a": 4, "b": 8, "c": 4, "d": 4}


@pytest.mark.parametrize(("how", "alive"), [("none", 4), ("full", 0), (("c",), 0)])
def test_saved_tensors_are_dropped_between_forward_and_backward(how: Recompute, alive: int) -> None:
    inner: list[weakref.ref[Any]] = []
    seen: list[int] = []

    def count(*_: object) -> None:
        gc.collect()
        seen.append(sum(ref() is not None for ref in inner))

    pipeline, model = chain_pipeline(INTERLEAVED, "gpipe", recompute={2: how})
    pipeline.step(*chain_batch())  # the first step computes more, to find what mixes samples
    # GELU saves its input, which is not an output of the stage.
    model.get_submodule("c.1").register_forward_hook(lambda _, __, output: inner.append(weakref.ref(output)))
    model.get_submodule("d").register_full_backward_pre_hook(count)
    pipeline.step(*chain_batch())
    assert seen[0] == alive
    assert len(inner) == (4 if how == "none" else 8)


def test_changing_buffers_are_found_and_restored() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    module.register_buffer("mask", torch.ones(1000))
    recomputation, x = Recomputation(module), torch.randn(5, 3)
    first, before = recomputation.compute(lambda: module(x))
    assert recomputation.changing == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert before["1.num_batches_tracked"] == 0
    assert torch.equal(recomputation.compute_again(lambda: module(x), before), first)
    assert module[1].num_batches_tracked == 1


def region(inner: nn.Module) -> RecomputeRegion:
    """Return a region that is recomputed."""
    found = RecomputeRegion("inner", inner)
    found.keeper = RegionRecomputation("inner", Recomputation(inner), torch.device("cpu"))
    return found


def test_a_region_is_recomputed_under_the_same_autocast_and_random_state() -> None:
    inner = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 8))
    kept, recomputed = inner, region(copy.deepcopy(inner))
    x = torch.randn(4, 8)
    found: list[list[Tensor]] = []
    for module in (kept, recomputed):
        torch.manual_seed(3)
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = module(leaf * 2)
        torch.manual_seed(4)  # as if other code ran before the backward
        after = torch.get_rng_state()
        result.float().square().sum().backward()
        assert torch.equal(torch.get_rng_state(), after)
        assert leaf.grad is not None
        found.append([result, leaf.grad, *(cast("Tensor", parameter.grad) for parameter in module.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_region_runs_once_and_without_a_graph_in_evaluation() -> None:
    calls: list[int] = []
    inner = nn.Linear(3, 3)
    inner.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        assert not region(inner)(torch.randn(2, 3)).requires_grad
    assert len(calls) == 1


class Fickle(nn.Module):
    """Saves fewer tensors in its second call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x.exp().sin() if self.calls == 1 else x.exp()


def test_a_forward_that_differs_from_call_to_call_is_refused() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(InvalidInput, match=r"recompute 'inner': its operations saved 2 tensors, and 1 when computed"):
        region(Fickle())(x).sum().backward()


def test_a_program_without_the_plans_regions_is_refused() -> None:
    model, (inputs, _) = chain(), chain_batch()
    plan = plan_of(model, inputs, TOGETHER, BATCH)
    stages = (replace(plan.stages[0], recompute=("b",)), plan.stages[1])
    programs = hand_split(model, plan, inputs)
    with pytest.raises(InvalidInput, match=r"'a\+b\+c': is to recompute or offload 'b', the regions"):
        Pipeline(replace(plan, stages=stages), programs, cross_entropy)
