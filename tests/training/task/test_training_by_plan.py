"""`graphpipe train` with a data set: what the ranks read, what they train, and how a run goes on."""

import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import graphpipe as gp
from graphpipe.files.json_document import write_document
from graphpipe.launch.first_failure import RankFailed
from graphpipe.planning.by_hand import HandPlan
from graphpipe.run.device.seeded import seeded
from graphpipe.training.run_folder.evaluations_log import read_evaluations
from graphpipe.training.run_folder.metrics_log import read_metrics_log
from graphpipe.training.task.dataset_reader import DatasetReader
from graphpipe.training.task.share_reader import BatchRequest, ShareReader
from graphpipe.training.task.task import load_task

PYTHON = sys.executable
TASK = """
import fcntl
import os
import time

import torch
from torch import nn

import graphpipe as gp

SECONDS = float(os.environ.get("SAMPLE_SECONDS", "0"))


class Pairs:
    column_names = ["image", "text", "label"]

    def __init__(self, count, seed, names=column_names):
        self.count, self.seed, self.column_names = count, seed, [*names]

    def __len__(self):
        return self.count

    def select_columns(self, names):
        return Pairs(self.count, self.seed, names)

    def __getitem__(self, index):
        rank = os.environ.get("RANK", "launcher")
        with open(f"read-{self.seed}-{rank}", "a") as file:
            file.write(f"{index} {' '.join(self.column_names)}\\n")
        draw = torch.Generator().manual_seed(1000 * self.seed + index)
        image, text = torch.randn(4, generator=draw), torch.randn(4, generator=draw)
        label = int(image.sum() > text.sum())
        if "image" in self.column_names:
            image = image + 0.1 * torch.rand(4)  # of the process-wide generator
            with open("one-reader", "w") as file:  # A disk that serves one reader at a time.
                fcntl.flock(file, fcntl.LOCK_EX)
                time.sleep(SECONDS)
        sample = {"image": image, "text": text, "label": label}
        return {name: sample[name] for name in self.column_names}


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(16, 2)

    def forward(self, a, b):
        return self.out(torch.cat([a, b], 1))


def model():
    towers = {"a": nn.Linear(4, 8), "deep": nn.Linear(8, 8), "b": nn.Linear(4, 8), "head": Head()}
    module = gp.DagModule(
        towers, inputs={"a": ["image"], "deep": ["a"], "b": ["words"], "head": ["deep", "b"]}
    )
    return module, {"image": torch.randn(2, 4), "words": torch.randn(2, 4)}


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean().item()


def task():
    module, inputs = model()
    return gp.Task(
        module=module,
        example_inputs=inputs,
        loss_fn=nn.functional.cross_entropy,
        dataset=Pairs(26, 1),
        columns={"words": "text"},
        targets="label",
        held_out=Pairs(19, 2),
        accuracy=accuracy,
    )
"""
CONFIG = """
task = "pairs.py:task"
cluster = "local:4"
[plan]
costs = "estimate"
stages = "stages.json"
[train]
batch_size = 8
steps = 7
checkpoint_every = 3
[optimizer]
name = "sgd"
lr = 0.1
"""
STAGES = [
    gp.HandStage(name="images", ops=("a",), devices=(0,), micro_batch=4),
    gp.HandStage(name="middle", ops=("deep",), devices=(1,), micro_batch=4),
    gp.HandStage(name="texts", ops=("b",), devices=(2,), micro_batch=8),
    gp.HandStage(name="head", ops=("head",), devices=(3,), micro_batch=4),
]


@pytest.fixture(autouse=True)
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_ranks: None) -> None:
    """Write the task and its configuration into a new folder, which becomes the working directory."""
    (tmp_path / "pairs.py").write_text(TASK)
    (tmp_path / "pairs.toml").write_text(CONFIG)
    write_document(tmp_path / "stages.json", "stages", HandPlan(stages=tuple(STAGES)))
    monkeypatch.chdir(tmp_path)


def read(seed: int = 1) -> dict[str, Counter[str]]:
    """Return what each rank has read of a data set, and forget it."""
    found: dict[str, Counter[str]] = {}
    for path in Path().glob(f"read-{seed}-*"):
        found[path.name.removeprefix(f"read-{seed}-")] = Counter(path.read_text().splitlines())
        path.unlink()
    return found


def columns_of(lines: Counter[str]) -> set[str]:
    return {line.partition(" ")[2] for line in lines}


def losses(folder: Path) -> list[float]:
    return [step.loss for step in read_metrics_log(folder / "metrics.jsonl")]


def in_plain_pytorch(steps: int) -> tuple[list[float], dict[str, Tensor], float, float]:
    """Return losses, weights, and held-out loss and accuracy of the same training."""
    task = load_task("pairs.py:task", ".", 0)
    needs = gp.Needs(size=8, inputs=dict.fromkeys(("image", "words"), range(8)), targets=range(8))
    source, held_out = task.source(), task.held_out_source()
    assert source is not None
    assert held_out is not None
    optimizer = torch.optim.SGD(task.module.parameters(), lr=0.1)
    found: list[float] = []
    for share in islice(DatasetReader(source=source, sampler=None, batch_size=8, seed=0).batches(needs), steps):
        optimizer.zero_grad()
        loss = task.loss_fn(task.module(**share.inputs), share.targets)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    rows = range(19)
    every = gp.Needs(size=19, inputs=dict.fromkeys(("image", "words"), rows), targets=rows)
    with seeded(0):
        share = ShareReader.of(held_out, every, 0).read(BatchRequest(0, [*rows]))
    assert task.accuracy is not None
    with torch.no_grad():
        outputs = task.module(**share.inputs)
        loss = task.loss_fn(outputs, share.targets).item()
    return found, task.module.state_dict(), loss, task.accuracy(outputs, share.targets)


def test_each_rank_reads_what_its_stages_consume_and_the_training_is_the_same() -> None:
    run = gp.train("pairs.toml", tell=None)
    expected, weights, held_out, accuracy = in_plain_pytorch(7)
    assert losses(run.folder.path) == pytest.approx(expected, rel=1e-5)
    for name, weight in load_file(run.folder.weights).items():
        torch.testing.assert_close(weight, weights[name], rtol=1e-4, atol=1e-6)
    assert run.result.loss_held_out == pytest.approx(held_out, rel=1e-5)
    assert run.result.accuracy == pytest.approx(accuracy)
    # 7 steps of 8 samples. The rank in the middle reads nothing, and no other rank opens an image or a text.
    by_rank = read()
    by_rank.pop("launcher")
    assert {rank: lines.total() for rank, lines in by_rank.items()} == {"0": 56, "2": 56, "3": 56}
    assert {rank: columns_of(lines) for rank, lines in by_rank.items()} == {
        "0": {"image"},
        "2": {"text"},
        "3": {"label"},
    }
    held_out_reads = read(2)
    assert {rank: lines.total() for rank, lines in held_out_reads.items() if rank != "launcher"} == {
        "0": 27,  # all 19, and the mini-batch of 8 with which the metrics are tried
        "2": 27,
        "3": 27,
    }


def test_held_out_samples_are_evaluated_during_the_training_which_stays_the_same(
    capfd: pytest.CaptureFixture[str],
) -> None:
    expected, _, held_out, _ = in_plain_pytorch(6)
    source = Path("pairs.py").read_text()
    metrics = "metrics=lambda outputs, targets: {'ones': targets.float().mean(), 'count': len(outputs)},"
    Path("pairs.py").write_text(source.replace("accuracy=accuracy,", f"accuracy=accuracy, {metrics}"))
    read(2)
    run = gp.train("pairs.toml", overrides=["train.steps=6", "train.eval_every=2"], tell=None)
    assert losses(run.folder.path) == pytest.approx(expected, rel=1e-5)
    found = read_evaluations(run.folder.evaluations)
    assert [each.step for each in found] == [2, 4, 6]
    assert found[-1].loss == run.result.loss_held_out == pytest.approx(held_out, rel=1e-5)
    assert found[-1].metrics == run.result.metrics
    assert run.result.metrics.keys() == {"accuracy", "ones", "count"}
    assert run.result.metrics["count"] == 19
    assert found[0].loss == pytest.approx(in_plain_pytorch(2)[2], rel=1e-5)
    assert {rank: lines.total() for rank, lines in read(2).items() if rank != "launcher"} == {
        "0": 65,
        "2": 65,
        "3": 65,
    }
    assert "held-out after step 4  loss " in capfd.readouterr().err
    (events,) = run.folder.path.glob("events/rank-1.jsonl")
    assert events.read_text().count('"evaluation"') == 3


def test_a_metric_that_is_no_number_is_named() -> None:
    source = Path("pairs.py").read_text()
    for metrics, sentence in {
        "lambda outputs, targets: 3": "metrics: returned int, must return a dict of numbers by name",
        "lambda outputs, targets: {'all': outputs}": "for 'all', must return numbers. Return its mean().",
    }.items():
        Path("pairs.py").write_text(source.replace("accuracy=accuracy,", f"metrics={metrics},"))
        with pytest.raises(RankFailed) as caught:
            gp.train("pairs.toml", overrides=["train.steps=1", "train.check=false"], tell=None)
        assert sentence in str(caught.value)


def test_a_run_resumes_without_reading_what_it_has_trained() -> None:
    expected, weights, _, _ = in_plain_pytorch(7)
    first = gp.train("pairs.toml", overrides=["train.steps=4", "train.workers=2"], tell=None)
    read()
    gp.train("pairs.toml", overrides=["train.steps=7"], resume=first.folder.path, tell=None)
    assert losses(first.folder.path) == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(load_file(first.folder.weights)["a.weight"], weights["a.weight"], rtol=1e-4, atol=1e-6)
    assert {rank: lines.total() for rank, lines in read().items() if rank != "launcher"} == {"0": 24, "2": 24, "3": 24}


def test_replicas_read_their_own_samples() -> None:
    stages = [
        gp.HandStage(name="towers", ops=("a", "deep", "b"), devices=(0, 1), micro_batch=4),
        gp.HandStage(name="head", ops=("head",), devices=(2, 3), micro_batch=8),
    ]
    write_document("stages.json", "stages", HandPlan(stages=tuple(stages)))
    run = gp.train("pairs.toml", tell=None)
    assert losses(run.folder.path) == pytest.approx(in_plain_pytorch(7)[0], rel=1e-5)
    by_rank = read()
    by_rank.pop("launcher")
    assert {rank: lines.total() for rank, lines in by_rank.items()} == {"0": 28, "1": 28, "2": 28, "3": 28}
    assert columns_of(by_rank["1"]) == {"image text"}
    assert columns_of(by_rank["2"]) == {"label"}


@pytest.mark.slow
def test_ranks_that_take_over_read_the_samples_of_the_lost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker held the connections of its killed rank open, and the other ranks noticed the loss too late."""
    monkeypatch.setattr(sys, "executable", PYTHON)  # The parent of a fork is the server.
    stages = [
        gp.HandStage(name="towers", ops=("a", "deep", "b"), devices=(0, 1), micro_batch=4),
        gp.HandStage(name="head", ops=("head",), devices=(2,), micro_batch=8),
    ]
    write_document("stages.json", "stages", HandPlan(stages=tuple(stages)))
    elastic = ["cluster=local:3", "run.elastic=true", "run.readmit_seconds=0", "train.workers=1", "train.check=false"]
    run = gp.train("pairs.toml", overrides=[*elastic, "train.faults=['kill@rank1:step5:phase=backward']"], tell=None)
    assert [each.rerouted for each in run.result.recoveries] == [True]
    assert losses(run.folder.path) == pytest.approx(in_plain_pytorch(7)[0], rel=1e-5)


@pytest.mark.slow
def test_images_that_one_reader_reads_at_a_time_cost_what_one_reader_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMPLE_SECONDS", "0.02")
    run = gp.train("pairs.toml", overrides=["train.check=false"], tell=None)
    one_reader = 8 * 0.02
    assert one_reader <= run.result.step_seconds_measured < 2 * one_reader, "four readers would take four times as long"


def test_what_cannot_be_read_is_named_before_the_training_or_by_its_rank() -> None:
    whole = Path("pairs.py").read_text()
    Path("pairs.py").write_text(whole.replace("torch.randn(4, generator=draw)\n", "torch.randn(5, generator=draw)\n"))
    with pytest.raises(
        gp.InvalidInput, match=r"dataset: input 'words' of a sample is float32\[5\], in the example it is"
    ):
        gp.train("pairs.toml", tell=None)
    Path("pairs.py").write_text(whole.replace("draw = ", "1 / (index != 9); draw = "))
    with pytest.raises(RankFailed, match="dataset: sample 9 cannot be read: ZeroDivisionError: division by zero"):
        gp.train("pairs.toml", overrides=["train.check=false", "train.seed=4"], tell=None)
