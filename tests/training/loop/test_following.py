"""Groups, schedules, averages, best checkpoints and early ends: a training by plan equals plain PyTorch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import graphpipe as gp
from graphpipe.run.checkpoint.folder import list_checkpoints
from graphpipe.training.run_folder.evaluations_log import read_evaluations
from graphpipe.training.run_folder.metrics_log import read_metrics_log
from graphpipe.training.task.task import load_task

STEPS, DECAY = 6, 0.7
GROUPS = """
[[optimizer.groups]]
match = ["*.bias"]
weight_decay = 0.0

[[optimizer.groups]]
match = ["sum.*"]
name = "AdamW"
lr_factor = 0.5
"""
SETTINGS = (
    *("optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.weight_decay=0.1", f"train.steps={STEPS}"),
    *("lr_schedule.name=ReduceLROnPlateau", "lr_schedule.arguments={factor=0.5, patience=0, threshold=9.0}"),
    *("lr_schedule.arguments.threshold_mode=abs", f"evaluation.average_decay={DECAY}", "train.eval_every=2"),
    *("train.checkpoint_every=2", "train.check=false"),
)
REPLICAS = {
    "graphpipe": "stages",
    "schema_version": 1,
    "stages": [{"ops": ["*"], "devices": [0, 1], "micro_batch": 16}],
}


@dataclass
class Followed:
    """What a training has found."""

    losses: list[float]
    held_out: list[float]
    averages: dict[str, Tensor]


def in_plain_pytorch() -> Followed:
    task = load_task("tiny.py:task", ".", 0)
    module = task.model
    named = dict(module.named_parameters())
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named.items():
        rate = 0.025 if name.startswith("sum.") else 0.05
        groups.setdefault((rate, 0.0 if name.endswith(".bias") else 0.1), []).append(parameter)
    assert len(groups) == 4
    options = [{"params": each, "lr": rate, "weight_decay": decay} for (rate, decay), each in groups.items()]
    optimizers = (
        torch.optim.SGD([each for each in options if each["lr"] == 0.05], momentum=0.9),
        torch.optim.AdamW([each for each in options if each["lr"] == 0.025]),
    )
    schedules = [
        torch.optim.lr_scheduler.ReduceLROnPlateau(each, factor=0.5, patience=0, threshold=9.0, threshold_mode="abs")
        for each in optimizers
    ]
    averages = {name: each.detach().clone() for name, each in named.items()}
    found = Followed([], [], averages)
    assert task.epoch is not None
    batches = [batch for number in range(2) for batch in task.epoch(number, 16, 0)]
    for step, (inputs, targets) in enumerate(islice(batches, STEPS), start=1):
        assert isinstance(inputs, dict)
        module.zero_grad()
        loss = task.loss_fn(module(**inputs), targets)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        found.losses.append(loss.item())
        for name, each in named.items():
            averages[name].mul_(DECAY).add_(each.detach(), alpha=1 - DECAY)
        if step % 2 == 0:
            given, wanted = task.held_out
            with torch.no_grad():
                outputs = torch.func.functional_call(module, averages, kwargs=given)
                found.held_out.append(task.loss_fn(outputs, wanted).item())
            for schedule in schedules:
                schedule.step(found.held_out[-1])
    return found


def followed(run: Any) -> Followed:
    evaluations = read_evaluations(run.folder.evaluations)
    assert all(each.loss is not None for each in evaluations)
    return Followed(
        [step.loss for step in read_metrics_log(run.folder.metrics_log)],
        [each.loss or 0.0 for each in evaluations],
        load_file(run.folder.averaged_weights),
    )


def assert_equal(found: Followed, expected: Followed) -> None:
    assert found.losses == pytest.approx(expected.losses, rel=1e-4)
    assert found.held_out == pytest.approx(expected.held_out, rel=1e-4)
    assert found.averages.keys() == expected.averages.keys()
    for name, tensor in expected.averages.items():
        torch.testing.assert_close(found.averages[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="stages", marks=pytest.mark.slow),
        pytest.param(["plan.stages=stages.json", "train.shard_optimizer=true"], id="zero1"),
        pytest.param(["plan.stages=stages.json", "train.engine=fsdp2"], id="fsdp2"),
    ],
)
def test_groups_averages_and_a_plateau_equal_plain_pytorch_and_resume(more: Sequence[str], config: Path) -> None:
    with config.open("a") as file:
        file.write(GROUPS)
    Path("stages.json").write_text(json.dumps(REPLICAS))
    expected = in_plain_pytorch()
    overrides = [*SETTINGS, *more]
    with pytest.raises(gp.GraphPipeError):
        gp.train(config, overrides=[*overrides, "train.faults=['raise@rank0:step4:phase=forward']"], tell=None)
    resumed = gp.train(config, overrides=overrides, resume="runs/tiny-1", tell=None)
    assert_equal(followed(resumed), expected)
    rates = [step.learning_rate for step in read_metrics_log(resumed.folder.metrics_log)]
    assert rates == [0.05, 0.05, 0.05, 0.05, 0.025, 0.025]
    again = gp.evaluate(resumed.folder.path)
    assert (again.averaged, again.step) == (True, STEPS)
    assert again.loss == pytest.approx(expected.held_out[-1], rel=1e-4)
    checkpoint = gp.evaluate(list_checkpoints(resumed.folder.checkpoints)[1])
    assert (checkpoint.averaged, checkpoint.step) == (True, 4)
    assert checkpoint.loss == pytest.approx(expected.held_out[1], rel=1e-4)


OWN = """

class Notes(gp.Callback):
    def __init__(self, stops=False):
        self.stops = stops

    def note(self, training, *words):
        with open(f"notes-{training.rank}", "a") as file:
            print(*words, file=file)

    def start(self, training):
        self.note(training, "start", training.step, training.steps, training.ranks)

    def step(self, training, figures):
        torch.rand(3)  # on one rank alone this would change its data
        assert figures["train/loss"] > 0 and figures["train/gradient_norm"] > 0
        self.note(training, "step", training.step)
        if self.stops and training.rank == 1 and training.step == 3:
            training.stop("rank 1 has seen enough")

    def evaluation(self, training, figures):
        self.note(training, "evaluation", training.step, *figures)

    def checkpoint(self, training):
        self.note(training, "checkpoint", training.step)

    def end(self, training, figures):
        self.note(training, "end", training.step, *figures)


SCORES = iter([0.5, 1.0, 3.0, 2.0, float("nan"), 2.5, 9.0])  # the first is that of the trial before all steps


def scored():
    made = task()
    return gp.Task(
        module=made.module, example_inputs=made.example_inputs, loss_fn=made.loss_fn, epoch=epoch,
        held_out=made.held_out, metrics=lambda outputs, targets: {"score": next(SCORES)}, callbacks=[Notes()],
    )


def stopping():
    made = task()
    return gp.Task(
        module=made.module, example_inputs=made.example_inputs, loss_fn=made.loss_fn, epoch=epoch,
        held_out=made.held_out, callbacks=[Notes(stops=True)],
    )


class Raising(gp.Callback):
    def step(self, training, figures):
        return {}["missing"]


def raising_callback():
    made = task()
    return gp.Task(
        module=made.module, example_inputs=made.example_inputs, loss_fn=made.loss_fn, epoch=epoch,
        callbacks=[Raising()],
    )
"""


@pytest.mark.usefixtures("forked_ranks")
def test_the_best_checkpoint_is_kept_and_patience_ends_a_training(config: Path, capfd: Any) -> None:
    with Path("tiny.py").open("a") as file:
        file.write(OWN)
    watched = ["evaluation.watch=score", "evaluation.mode=max", "evaluation.keep_best=true", "evaluation.patience=3"]
    overrides = ["task=tiny.py:scored", "train.steps=20", "train.eval_every=1", "train.check=false", *watched]
    run = gp.train(config, overrides=overrides, tell=None)
    assert run.result.steps == 5
    assert run.result.why_ended == "score has not become better since step 2, in 3 evaluations"
    assert (run.result.best_step, run.result.best) == (2, 3.0)
    assert "ended after step 5 of 20: score has not" in capfd.readouterr().err
    assert [path.name for path in list_checkpoints(run.folder.best)] == ["step-00000002"]
    evaluations = read_evaluations(run.folder.evaluations)
    assert [each.step for each in evaluations] == [1, 2, 3, 4, 5]
    best = gp.evaluate(run.folder.best)
    assert (best.step, best.averaged) == (2, False)
    assert best.loss == pytest.approx(evaluations[1].loss, rel=1e-6)
    last = gp.evaluate(run.folder.path)
    assert last.loss == pytest.approx(run.result.loss_held_out, rel=1e-6)
    notes = Path("notes-0").read_text()
    assert notes == Path("notes-1").read_text()
    steps = [f"step {step}\nevaluation {step} loss score\n" for step in range(1, 6)]
    assert notes == f"start 0 20 2\n{''.join(steps)}end 5 loss score\n"


@pytest.mark.usefixtures("forked_ranks")
def test_a_callback_of_one_rank_ends_a_training_on_all(config: Path) -> None:
    with Path("tiny.py").open("a") as file:
        file.write(OWN)
    overrides = ["task=tiny.py:stopping", "train.steps=20", "train.checkpoint_every=4", "train.check=false"]
    run = gp.train(config, overrides=overrides, tell=None)
    assert (run.result.steps, run.result.why_ended) == (4, "rank 1 has seen enough")
    assert [path.name for path in list_checkpoints(run.folder.checkpoints)] == ["step-00000004"]
    with pytest.raises(gp.GraphPipeError, match=r"callback Raising: raised KeyError: 'missing' \(tiny\.py, line"):
        gp.train(config, overrides=["task=tiny.py:raising_callback", "train.check=false"], tell=None)
