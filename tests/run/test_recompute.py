"""A stage that forgets its forwards and computes them again trains, bit for bit, like one that keeps them."""

import gc
import weakref

import pytest
import torch
from run_chain import INTERLEAVED, chain_batch, chain_pipeline, train_chain
from torch import Tensor, nn

from graphpipe.run.recompute import Forgetful

REPLICATED = [(["a"], [0, 1], 4), (["b", "c"], [2, 3], 4), (["d"], [0], 8)]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("stages", [INTERLEAVED, REPLICATED])
def test_everything_is_equal(stages: list, schedule: str) -> None:
    kept = train_chain(stages, schedule)
    forgotten = train_chain(stages, schedule, tuple(range(len(stages))))
    assert forgotten["losses"] == kept["losses"]
    for what in ("gradients", "state"):  # BatchNorm's statistics and the count of calls are in the state
        assert forgotten[what].keys() == kept[what].keys()
        for name, tensor in kept[what].items():
            assert torch.equal(forgotten[what][name], tensor), name
    assert "b.2.running_mean" in kept["state"]
    assert kept["state"]["c.0.calls"] > 1


def test_only_stages_with_the_policy_compute_twice() -> None:
    calls: list[str] = []
    pipeline, model = chain_pipeline(INTERLEAVED, recompute=(1,))
    for name in ("a", "b", "c", "d"):
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    pipeline.step(*chain_batch())
    assert {name: calls.count(name) for name in "abcd"} == {"a": 4, "b": 8, "c": 4, "d": 4}


@pytest.mark.parametrize(("forgets", "alive"), [(False, 4), (True, 0)])
def test_what_operations_saved_is_gone_between_forward_and_backward(forgets: bool, alive: int) -> None:
    inner: list[weakref.ref[Tensor]] = []
    seen: list[int] = []

    def count(*_: object) -> None:
        gc.collect()
        seen.append(sum(ref() is not None for ref in inner))

    pipeline, model = chain_pipeline(INTERLEAVED, "gpipe", recompute=(2,) if forgets else ())
    # GELU saves its input, which is no output of the stage.
    model.get_submodule("c.1").register_forward_hook(lambda _, __, output: inner.append(weakref.ref(output)))
    model.get_submodule("d").register_full_backward_pre_hook(count)
    pipeline.step(*chain_batch())
    assert seen[0] == alive
    assert len(inner) == (8 if forgets else 4)


def test_the_first_pass_has_no_graph_and_changing_buffers_are_found() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    module.register_buffer("mask", torch.ones(1000))
    forgetful, x = Forgetful(module), torch.randn(5, 3)
    first, before = forgetful.first(lambda: module(x))
    assert not first.requires_grad
    assert forgetful.changing == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert before["1.num_batches_tracked"] == 0
    assert torch.equal(forgetful.again(lambda: module(x), before), first)
    assert module[1].num_batches_tracked == 1
