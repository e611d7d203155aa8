"""Mistakes in a user's task: one sentence that names the field or the line, before anything runs."""

import json
import time
from pathlib import Path

import pytest
import torch
from cli_cases import TASK as WITH_HELD_OUT
from cli_cases import Run
from safetensors.torch import load_file

from graphpipe.costs import CostTable
from graphpipe.training.task.task import load_task

TASK = WITH_HELD_OUT.replace("next(iter(epoch(99, 32, 0)))", "None")
EPOCH = """def epoch(number, batch_size, seed):
    generator = torch.Generator().manual_seed(1000 * seed + number)"""
PAIR = '{"x": x, "y": y}, (x - y).sum(1, keepdim=True)'


PATCHES = """
import torch
from torch import nn

import graphpipe as gp


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, patches):
        assert patches.dim() == 2, "the patches of all samples"
        return self.out(self.embed(patches)).reshape(-1, 3, 2).mean(1)


def epoch(number, batch_size, seed):
    generator = torch.Generator().manual_seed(number)
    for _ in range(4):
        yield {"patches": torch.randn(batch_size, 3, 6, generator=generator)}, torch.zeros(batch_size, 2)


def task():
    module, inputs = Tower(), {"patches": torch.randn(4, 3, 6)}
    graph = gp.capture(module, inputs, forms={"patches": "joined"}, split=["embed"])
    loss_fn = nn.functional.mse_loss
    return gp.Task(module=module, example_inputs=inputs, loss_fn=loss_fn, epoch=epoch, graph=graph)
"""
"""A model that is captured with options, which no command has."""


def say(run: Run, code: int = 2) -> str:
    """Return the one sentence with which a training is refused; nothing is left behind."""
    ran = run("train", "tiny.toml")
    assert ran.code == code, ran.err
    assert ran.err.startswith("graphpipe: error: "), ran.err
    assert len(ran.err.splitlines()) == 1, ran.err
    assert not Path("runs").exists()
    return ran.err


@pytest.mark.parametrize(
    ("before", "after", "parts"),
    [
        ("module=module", "module=DoesNot", ("tiny.py:task'", "NameError: name 'DoesNot'", "tiny.py, line", "in task")),
        (
            "module=module",
            "module=nn.Linear",
            ("Task: module is the class Linear, must be an nn.Module. Call it: Linear(...).",),
        ),
        ("loss_fn=loss_fn", "loss=loss_fn", ("unexpected keyword argument 'loss'", "in task")),
        (
            "loss_fn=loss_fn",
            "loss_fn=lambda output: 0",
            ("loss_fn must be a function of (outputs, targets)", "too many"),
        ),
        ("epoch=epoch", "epoch=list(epoch(0, 16, 0))", ("epoch is a list, must be a function of (epoch, batch_size,",)),
        ("accuracy=accuracy", "accuracy=0.5", ("accuracy is a float",)),
        ("held_out=held_out", "held_out=inputs", ("held_out: found a dict of 2", "a pair (inputs, targets)")),
        ("(number, batch_size, seed)", "(seed)", ("epoch must be a function of",)),
        (EPOCH, f"{EPOCH}\n    batch_size = 5", ("epoch: yields mini-batches of 5 samples, train.batch_size is 16",)),
        (EPOCH, f"{EPOCH}\n    return iter(())", ("train.batch_size: an epoch has no mini-batch of 16 samples",)),
        (
            PAIR,
            "x, y, x - y",
            ("mini-batch of the epoch: found a tuple of 3, must be a pair (inputs, targets)", "one dict by name"),
        ),
        (PAIR, '{"x": x, "y": y}', ("found a dict of 2, must be a pair",)),
        (PAIR, '{"x": x, "why": y}, x', ("the first mini-batch of the epoch: the model takes no input 'why'",)),
        (PAIR, '{"x": x, "y": y[:3]}, x', ("'x' has 16, 'y' has 3",)),
        (PAIR, '{"x": x, "y": y}, x[:3]', ("target 0 holds 3 samples, input 'x' holds 16",)),
        (
            "def forward(self, a, b):",
            "def forward(self, a, b):\n        a = a[:, :3]",
            ("(tiny.py, line", "in forward)"),
        ),
    ],
)
def test_a_mistake_in_a_task_is_named(run: Run, config: Path, before: str, after: str, parts: tuple[str, ...]) -> None:
    assert before in TASK
    Path("tiny.py").write_text(TASK.replace(before, after))
    message = say(run)
    for part in parts:
        assert part in message


@pytest.mark.usefixtures("forked_ranks")
def test_a_task_may_bring_the_graph_that_it_captured_with_options(run: Run, config: Path) -> None:
    # Qwen2-VL takes the patches of all images in one dimension. Its task could be trained with a plan of Python's only.
    Path("tiny.py").write_text(PATCHES)
    planned = run("plan", "tiny.py:task", "--cluster", "local:2", "--batch", "16", "--json")
    assert planned.code == 0, planned.err
    assert run("train", config, "train.steps=1", "--json").code == 0
    (metrics,) = Path("runs").glob("*/metrics.jsonl")
    task = load_task("tiny.py:task", ".", 0)
    assert task.epoch is not None
    inputs, targets = next(iter(task.epoch(0, 16, 0)))
    assert isinstance(inputs, dict)
    expected = torch.nn.functional.mse_loss(task.model(inputs["patches"].flatten(0, 1)), targets)
    assert json.loads(metrics.read_text().splitlines()[0])["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_options_of_the_command_agree_with_those_of_the_graph(run: Run, config: Path) -> None:
    Path("tiny.py").write_text(PATCHES)
    message = run("plan", "tiny.py:task", "--cluster", "local:2", "--batch", "16", "--look-into", "out").err
    assert "graph: Tower was captured with split=['embed'], but split=['out'] is asked for. Capture it with" in message
    Path("tiny.py").write_text(PATCHES.replace("graph=graph", "graph=3"))
    assert "Task: graph is a int, must be a graph of `capture`" in say(run)


def test_an_epoch_that_returns_nothing(run: Run, config: Path) -> None:
    Path("tiny.py").write_text(
        TASK.replace(EPOCH, "def epoch(number, batch_size, seed):\n    return").split("    for _")[0]
        + TASK.split("keepdim=True)")[1]
    )
    assert "epoch: returned NoneType, must return or yield mini-batches (inputs, targets)" in say(run)


def test_an_epoch_that_raises(run: Run, config: Path) -> None:
    Path("tiny.py").write_text(TASK.replace(EPOCH, f"{EPOCH}\n    1 / (number * 0)"))
    assert "error: ZeroDivisionError: division by zero (tiny.py, line 27, in epoch). GRAPHPIPE_DEBUG" in say(run, 4)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            "lambda o, t: (o - t).no_such()",
            "AttributeError: 'Tensor' object has no attribute 'no_such' (tiny.py, line ",
        ),
        (
            "lambda o, t: (o - t).mean().detach()",
            "InvalidInput: loss_fn: returned a loss that does not depend on any trainable ",
        ),
    ],
)
@pytest.mark.usefixtures("forked_ranks")
def test_a_loss_that_fails_is_one_sentence(run: Run, config: Path, loss: str, message: str) -> None:
    Path("tiny.py").write_text(TASK.replace("loss_fn=loss_fn", f"loss_fn={loss}"))
    ran = run("train", config, "--json")
    assert ran.code == 4
    assert message in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err
    assert ran.err.splitlines()[-1].count("no_such") == ("no_such" in loss)


REFUSED = "accuracy: returned a torch.bool tensor of shape ({count}, 1), must return one number. Return its mean()."


@pytest.mark.usefixtures("forked_ranks")
def test_an_accuracy_that_is_not_a_number_is_refused_before_the_first_step(run: Run, config: Path) -> None:
    """It ended the training after its last step."""
    Path("tiny.py").write_text(WITH_HELD_OUT.replace("< 1).float().mean().item()", "< 1)"))
    ran = run("train", config, "train.steps=2", "--json")
    assert ran.code == 4
    assert REFUSED.format(count=16) in ran.err.splitlines()[-1]
    assert not Path("runs/tiny-1/metrics.jsonl").exists()


@pytest.mark.usefixtures("forked_ranks")
def test_weights_are_saved_if_the_accuracy_of_the_trained_model_is_not_a_number(run: Run, config: Path) -> None:
    number = "return ((outputs - targets).abs() < 1).float().mean().item()"
    only_of_few = f"if len(outputs) < 32:\n        {number}\n    return outputs < targets"
    Path("tiny.py").write_text(WITH_HELD_OUT.replace(number, only_of_few))
    ran = run("train", config, "train.steps=2", "--json")
    assert ran.code == 4
    assert REFUSED.format(count=32) in ran.err.splitlines()[-1]
    assert set(load_file("runs/tiny-1/model.safetensors")) >= {"a.weight", "b.weight", "sum.out.weight"}


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_the_loss_is_part_of_what_is_planned(run: Run, config: Path) -> None:
    product = "torch.ones(500, 500).matmul(torch.ones(500, 500)).mean()"
    slow = f"lambda o, t: (o - t).pow(2).mean() + 0 * o.sum() * {product}"
    Path("tiny.py").write_text(TASK.replace("loss_fn=loss_fn", f"loss_fn={slow}"))
    began = time.thread_time()
    for _ in range(5):
        torch.ones(500, 500).matmul(torch.ones(500, 500))
    seconds = (time.thread_time() - began) / 5
    assert run("train", config, "plan.costs=profile", "train.steps=1", "--json").code == 0
    rows = CostTable.load(next(Path("runs").glob("*/costs.json"))).rows
    forward = [row.forward(4) for row in rows]
    assert max(forward) > 0.3 * seconds > 10 * min(forward)
