"""A mini-batch that a plan cannot train ended a training after its first epoch."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import graphpipe as gp
from graphpipe.training import epoch_sizes
from graphpipe.training.epoch_sizes import check_sizes
from tests.support.programs.plain_training import cut_plan

Epoch = Callable[[int], Iterable[Any]]


def batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(samples, 4), torch.randint(2, (samples,))


def loader(samples: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*batch(samples)), batch_size=8, **options)


EPOCHS: dict[str, tuple[Epoch, Epoch]] = {
    "list": (lambda _: [batch(8), batch(6)], lambda _: [batch(8), batch(9)]),
    "generator": (lambda _: (batch(n) for n in (8, 8, 2)), lambda _: (batch(n) for n in (8, 8, 9))),
}


def check(epoch: Epoch, steps: int | None = None, weights: Any = "flush", engine: str = "") -> None:
    """Check the sizes of an epoch; with an engine, for two replicas with micro-batches of 4 that it synchronises."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    graph, cluster = gp.capture(model, batch(4)[0]), gp.Cluster.preset("local:2")
    plan = replace(cut_plan(graph, batch_size=8, micro_batch=2), weights=weights)
    if engine:
        stages = [gp.HandStage(ops=("*",), devices=(0, 1), micro_batch=4)]
        plan = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, stages=stages)
    task = gp.Task(
        module=model,
        example_inputs=batch(4)[0],
        loss_fn=nn.functional.cross_entropy,
        epoch=lambda number, batch_size, seed: epoch(number),
    )
    train = SimpleNamespace(batch_size=8, seed=0, steps=steps, engine=engine or "allreduce", shard_optimizer=False)
    config = SimpleNamespace(train=train)
    check_sizes(cast("Any", config), task, plan)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", EPOCHS)
def test_a_mini_batch_that_a_plan_cannot_train_is_found(kind: str) -> None:
    smaller, larger = EPOCHS[kind]
    check(smaller)
    with pytest.raises(gp.InvalidInput, match=r"epoch: the mini-batch has 9 samples, the plan is for 8"):
        check(larger)


@pytest.mark.timeout(60)
def test_a_smaller_mini_batch_without_a_flush_is_found_by_a_loaders_length() -> None:
    check(lambda _: loader(21))
    with pytest.raises(gp.InvalidInput, match="has 5 samples, the plan is for 8, and it updates weights without a"):
        check(lambda _: loader(21), weights="stash")


@pytest.mark.timeout(60)
def test_a_mini_batch_in_which_a_replica_has_no_sample_is_found_where_the_engine_needs_one() -> None:
    """The ranks met it at the end of the epoch."""
    check(lambda _: loader(21), engine="allreduce")
    with pytest.raises(
        gp.InvalidInput, match=r"epoch: micro-batches of 4 leave 1 of 5 samples .* which has 2 replicas"
    ):
        check(lambda _: loader(21), engine="ddp")


@pytest.mark.timeout(60)
def test_what_a_training_does_not_reach_or_a_loader_drops_is_no_fault() -> None:
    check(EPOCHS["generator"][1], steps=2)
    check(lambda _: loader(21), steps=2, weights="stash")
    check(lambda _: loader(21, drop_last=True), weights="stash")


@pytest.mark.timeout(60)
def test_an_epoch_that_waits_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waited for a later event held the launcher for ever: the sizes of a stream are not known before."""
    monkeypatch.setattr(epoch_sizes, "_SECONDS", 0.2)
    later = Event()

    def stream(number: int) -> Iterable[Any]:
        yield batch(8)
        later.wait()
        yield batch(5)

    check(stream)
    later.set()


@pytest.mark.timeout(60)
def test_an_error_of_the_epoch_is_left_to_the_ranks() -> None:
    """It may be of the thread that reads here, such as that of a data base."""

    def broken(number: int) -> Iterable[Any]:
        yield batch(8)
        raise RuntimeError("made in another thread")

    check(broken)
