"""The last, smaller mini-batch of an epoch is trained as in plain PyTorch, or found before the first step."""

from itertools import chain, islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import graphpipe as gp
from graphpipe.files.json_document import write_document
from graphpipe.planning.by_hand import HandPlan
from graphpipe.training.run_folder.metrics_log import read_metrics_log
from graphpipe.training.task.task import load_task

TASK = """
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import graphpipe as gp


def samples(count):
    draw = torch.Generator().manual_seed(count)
    x = torch.randn(count, 4, generator=draw).double()
    return TensorDataset(x, (x.sum(1) > 0).long())


class Stream(IterableDataset):
    def __iter__(self):
        return iter(samples(22))


def loader(number, batch_size, seed):
    draw = torch.Generator().manual_seed(number)
    return DataLoader(samples(22), batch_size, shuffle=True, generator=draw)


def in_order(number, batch_size, seed):
    x, y = samples(22).tensors
    return ((x[at : at + batch_size], y[at : at + batch_size]) for at in range(0, 22, batch_size))


def stream(number, batch_size, seed):
    return DataLoader(Stream(), batch_size)


def odd(number, batch_size, seed):
    return DataLoader(samples(21), batch_size)


def task(**data):
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    loss = nn.CrossEntropyLoss(ignore_index=1) if data.pop("words", False) else nn.functional.cross_entropy
    x = torch.randn(2, 4).double()
    return gp.Task(module=module, example_inputs=x, loss_fn=loss, held_out=samples(13), **data)


def of_loader():
    return task(epoch=loader)


def of_stream():
    return task(epoch=stream)


def with_weights():
    return task(epoch=in_order, words=True)


def not_divided():
    return task(epoch=odd)


def indexed():
    return task(dataset=samples(21))
"""
CONFIG = """
task = "last.py:of_loader"
cluster = "local:2"
[plan]
costs = "estimate"
stages = "cut.json"
[train]
batch_size = 8
epochs = 2
[optimizer]
name = "sgd"
momentum = 0.9
lr = 0.1
"""
PLANS = {
    "alone": [gp.HandStage(ops=("*",), devices=(0,), micro_batch=2)],
    "cut": [
        gp.HandStage(ops=("0",), devices=(0,), micro_batch=2),
        gp.HandStage(ops=("2",), devices=(1,), micro_batch=2),
    ],
    "replicas": [gp.HandStage(ops=("*",), devices=(0, 1), micro_batch=2)],
}


@pytest.fixture(autouse=True)
def last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_ranks: None) -> None:
    """Write the task and its configuration into a new folder, which becomes the working directory."""
    (tmp_path / "last.py").write_text(TASK)
    (tmp_path / "last.toml").write_text(CONFIG)
    for name, stages in PLANS.items():
        write_document(tmp_path / f"{name}.json", "stages", HandPlan(stages=tuple(stages)))
    monkeypatch.chdir(tmp_path)


def in_plain_pytorch(word: str) -> tuple[list[float], dict[str, torch.Tensor], float]:
    task = load_task(f"last.py:{word}", ".", 0)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1, momentum=0.9)
    losses: list[float] = []
    assert task.epoch is not None
    for x, y in islice(chain(*(task.epoch(number, 8, 0) for number in range(2))), 6):
        optimizer.zero_grad()
        loss = task.loss_fn(task.model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    x, y = task.held_out.tensors
    return losses, task.model.state_dict(), task.loss_fn(task.model(x), y).item()


@pytest.mark.parametrize(
    ("word", "stages"),
    [
        ("of_loader", "alone"),
        ("not_divided", "cut"),
        ("not_divided", "replicas"),
        ("of_stream", "replicas"),
        ("with_weights", "cut"),
        ("with_weights", "replicas"),
    ],
)
def test_it_is_trained_and_evaluated_as_in_plain_pytorch(word: str, stages: str) -> None:
    """Each epoch has mini-batches of 8, 8 and 6 samples, or of 8, 8 and 5, and 13 samples are evaluated.

    The last one of 5 samples is computed in micro-batches of 2, 2 and 1. It was refused.
    """
    run = gp.train("last.toml", overrides=[f"task=last.py:{word}", f"plan.stages={stages}.json"], tell=None)
    losses, weights, held_out = in_plain_pytorch(word)
    assert [step.loss for step in read_metrics_log(run.folder.metrics_log)] == pytest.approx(losses, rel=1e-12)
    for name, weight in load_file(run.folder.weights).items():
        torch.testing.assert_close(weight, weights[name], rtol=1e-12, atol=1e-14)
    assert run.result.loss_held_out == pytest.approx(held_out, rel=1e-12)


def test_samples_of_a_data_set_that_are_left_out_are_counted() -> None:
    """They were left out without a word."""
    told: list[str] = []
    gp.train("last.toml", overrides=["task=last.py:indexed", "plan.stages=alone.json"], tell=told.append)
    assert any("each epoch leaves out 5 of 21 samples" in line for line in told)
