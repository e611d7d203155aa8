"""The files that a training writes while it runs: events of every rank, metrics for loggers, torch's own profile."""

import importlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cli_cases import CONFIG, TASK, Run
from forked_programs import forked_programs

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.telemetry import loggers
from graphpipe.training.telemetry.event import (
    CheckpointEvent,
    EndEvent,
    FailureEvent,
    MemoryEvent,
    StartEvent,
    StepEvent,
)
from graphpipe.training.telemetry.event_log import read_events

STEPS, PROFILED = 7, 3
WORDS = (
    *("train", "tiny.toml", f"train.steps={STEPS}", "plan.micro_batch=4", "train.checkpoint_every=3", "run.name=run"),
    *("train.loggers=['tensorboard', 'wandb']", "--torch-profiler", f"steps={PROFILED}"),
)
RAISING = TASK.replace(
    "def task(",
    """
class Linear(nn.Linear):
    calls = 0

    def forward(self, x):
        Linear.calls += type(x) is torch.Tensor and torch.is_grad_enabled()  # not while it is captured or evaluated
        if Linear.calls > 5:
            raise OverflowError("tripped")
        return super().forward(x)


def task(""",
).replace('"b": nn.Linear(4, 8)', '"b": Linear(4, 8)')


def train(folder: Path, *command: str | Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    (folder / "tiny.py").write_text(TASK)
    (folder / "tiny.toml").write_text(CONFIG)
    whole = os.environ | environment
    return subprocess.run([*command, *WORDS], cwd=folder, capture_output=True, text=True, check=False, env=whole)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with everything on."""
    for package in ("tensorboard", "wandb"):
        pytest.importorskip(package)
    home = tmp_path_factory.mktemp("telemetry")
    ran = train(home, forked_programs() / "graphpipe")
    assert ran.returncode == 0, ran.stderr
    (home / "stderr").write_text(ran.stderr)
    return home / "runs" / "run-1"


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_writes_its_events(folder: Path, rank: int) -> None:
    lines = read_events(folder / "events" / f"rank-{rank}.jsonl")
    events = [line.event for line in lines]
    plan = Plan.load(folder / "plan.json")
    assert {line.rank for line in lines} == {rank}
    assert [line.unix_seconds for line in lines] == sorted(line.unix_seconds for line in lines)
    start = events[0]
    assert isinstance(start, StartEvent)
    assert start.plan_fingerprint == plan.fingerprint
    device = plan.used_devices[rank]
    assert start.stages == tuple(stage.name for stage in plan.stages if device in stage.devices)
    assert (start.first_step, start.device) == (1, "cpu")
    steps = [event for event in events if isinstance(event, StepEvent)]
    assert [(step.step, step.loss) for step in steps] == [(line["step"], line["loss"]) for line in metrics(folder)]
    assert all(step.samples_per_second == pytest.approx(16 / step.seconds) for step in steps)
    memory = [event for event in events if isinstance(event, MemoryEvent)]
    assert [event.step for event in memory] == list(range(STEPS + 1))
    assert all(1e8 < event.held_bytes <= event.peak_bytes * 1.01 for event in memory)  # torch alone is as large
    assert [event.step for event in events if isinstance(event, CheckpointEvent)] == [3, 6, 7]
    assert events[-1] == EndEvent(step=STEPS)


def test_tensorboard_reads_the_metrics_back(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    losses = [(point.step, point.value) for point in read.Scalars("train/loss")]
    assert losses == [(line["step"], pytest.approx(line["loss"])) for line in metrics(folder)]
    result = json.loads((folder / "metrics.json").read_text())
    (accuracy,) = read.Scalars("held_out/accuracy")
    assert (accuracy.step, accuracy.value) == (STEPS, pytest.approx(result["accuracy"]))
    names = {"train/loss", "train/step_seconds", "train/samples_per_second", "held_out/accuracy", "held_out/loss"}
    names |= {"train/learning_rate", "train/gradient_norm", "memory/rank0_held_bytes", "memory/rank0_peak_bytes"}
    stages = {f"stage/{stage.name}_seconds" for stage in Plan.load(folder / "plan.json").stages}
    assert set(read.Tags()["scalars"]) == names | stages
    rates = [point.value for point in read.Scalars("train/learning_rate")]
    assert rates == [pytest.approx(line["learning_rate"]) for line in metrics(folder)] == [pytest.approx(0.05)] * STEPS
    for name in stages:  # all steps of a short run but the first are recorded
        assert [point.step for point in read.Scalars(name)] == [*range(2, STEPS + 1)]
        assert all(point.value > 0 for point in read.Scalars(name))


def test_repeated_steps_are_in_tensorboard_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first, losses in ((1, [3.0, 2.0, 1.0]), (3, [0.5, 0.25])):  # broken off after step 3, resumed after step 2
        with loggers.open_loggers(["tensorboard"], RunFolder(tmp_path), {}, first) as (logger,):
            for step, loss in enumerate(losses, start=first):
                logger.log(step, {"train/loss": loss})
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [(point.step, point.value) for point in read.Scalars("train/loss")] == [(1, 3), (2, 2), (3, 0.5), (4, 0.25)]


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a .wandb file: a head of seven bytes, then LevelDB's log format in blocks of 32 KiB."""
    content, at, record = path.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # too little for another head: padding
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield record
            record = b""


def test_wandb_has_an_offline_run_with_the_metrics(folder: Path) -> None:
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    rows: list[dict[str, Any]] = []
    settings: dict[str, Any] = {}
    for data in records(path):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append({".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item})
        settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    losses = [(row["_step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == [(line["step"], line["loss"]) for line in metrics(folder)]
    assert rows[-1]["held_out/accuracy"] == json.loads((folder / "metrics.json").read_text())["accuracy"]
    assert settings["train"]["steps"] == STEPS


@pytest.mark.parametrize("rank", [0, 1])
def test_the_profile_of_every_rank_names_stages_and_micro_batches(folder: Path, rank: int) -> None:
    plan = Plan.load(folder / "plan.json")
    events = json.loads((folder / "torch-profile" / f"rank-{rank}.json").read_text())["traceEvents"]
    ranges = [event for event in events if event.get("cat") == "user_annotation"]
    counts: dict[str, int] = {}
    for event in ranges:
        counts[event["name"]] = counts.get(event["name"], 0) + 1
    hosted = [stage for stage in plan.stages if plan.used_devices[rank] in stage.devices]
    for stage in hosted:
        for index in range(plan.batch_size // stage.micro_batch):
            for word in ("forward", "backward"):
                assert counts[f"{word} {stage.name} micro-batch {index}"] == PROFILED
    assert counts[f"optimizer {hosted[0].name}"] == PROFILED
    # What torch did stands inside the ranges.
    linear = [event for event in events if event.get("name") == "aten::linear"]
    spans = [(event["ts"], event["ts"] + event["dur"]) for event in ranges if event["name"].startswith("forward")]
    assert len(linear) >= PROFILED
    assert all(any(start <= event["ts"] <= end for start, end in spans) for event in linear)


@pytest.mark.slow
def test_ranks_that_profile_end_where_freed_memory_is_overwritten(tmp_path: Path) -> None:
    """Messages that outlived torch's profiler left it a list that was gone: at their end, most ranks crashed (SIGSEGV),
    the others by luck did not."""
    command = (sys.executable, "-m", "graphpipe")  # no forks, so that these settings of the memory apply to the ranks
    ran = train(tmp_path, *command, PYTHONMALLOC="malloc", MALLOC_PERTURB_="165")
    assert ran.returncode == 0, ran.stderr


def test_the_banner_has_a_row_per_rank(folder: Path) -> None:
    output = (folder.parents[1] / "stderr").read_text()
    plan = Plan.load(folder / "plan.json")
    for rank, device in enumerate(plan.used_devices):
        (line,) = re.findall(rf"^{rank} +\S+ +{re.escape(plan.cluster.devices[device].name)} .*$", output, re.MULTILINE)
        assert all(stage.name in line for stage in plan.stages if device in stage.devices)
    assert "warning" not in output
    assert re.search(rf"^step {STEPS}/{STEPS}  loss \S+  \S+ samples/s  \S+ \w+ left$", output, re.MULTILINE)


@pytest.mark.usefixtures("forked_ranks")
def test_a_failure_names_the_task_and_a_resumed_run_continues_the_file(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder.parents[1], tmp_path, dirs_exist_ok=True)
    (tmp_path / "tiny.py").write_text(RAISING)
    words = (*WORDS[:2], "train.steps=20", "--resume", "runs/run-1", "train.loggers=[]")
    command = [sys.executable, "-m", "graphpipe", *words, "--plan", "runs/run-1/plan.json"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 4, ran.stderr
    plan = Plan.load(tmp_path / "runs" / "run-1" / "plan.json")
    culprit = next(number for number, stage in enumerate(plan.stages) if "b" in stage.ops)
    rank = plan.used_devices.index(plan.stages[culprit].devices[0])
    lines = read_events(tmp_path / "runs" / "run-1" / "events" / f"rank-{rank}.jsonl")
    starts = [line.event.first_step for line in lines if isinstance(line.event, StartEvent)]
    assert starts == [1, STEPS + 1]
    last = lines[-1].event
    assert isinstance(last, FailureEvent)
    tasks = plan.batch_size // plan.stages[culprit].micro_batch
    assert (last.error, last.message) == ("OverflowError", "tripped")
    assert (last.step, last.task, last.stage) == (STEPS + 1 + 5 // tasks, "F", plan.stages[culprit].name)
    assert last.micro_batch == 5 % tasks
    assert last.traceback.endswith("OverflowError: tripped\n")
    assert "tiny.py" in last.traceback
    assert "Traceback" not in ran.stderr


def test_a_missing_extra_is_named_before_anything_runs(run: Run, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> ModuleSpec | None:
        return None if name == "wandb" else find_spec(name)

    monkeypatch.setattr(loggers, "find_spec", find)
    ran = run("train", config, "train.loggers=['wandb']")
    assert ran.code == 2
    assert "train.loggers: 'wandb' needs the package wandb, which is not installed" in ran.err
    assert "pip install 'graphpipe-torch[wandb]'" in ran.err
    assert not Path("runs").exists()


def test_an_unknown_logger_is_refused(run: Run, config: Path) -> None:
    ran = run("train", config, "train.loggers=['wandbb']")
    assert ran.code == 2
    assert (
        "train.loggers: unknown logger 'wandbb'. Did you mean 'wandb'? Known: jsonl, mlflow, tensorboard, wandb."
        in ran.err
    )


class Lines(loggers.MetricLogger):
    """Keeps what it is given."""

    seen: ClassVar[list[tuple[int, dict[str, float]]]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics."""
        self.seen.append((step, dict(metrics)))

    def close(self) -> None:
        """Do nothing."""


def test_a_registered_logger_and_lines_of_json_get_the_metrics(tmp_path: Path) -> None:
    kind = loggers.LoggerKind(name="lines", open=lambda folder, settings, first_step: Lines())
    needy = loggers.LoggerKind(name="needy", open=kind.open, package="no_such_package")
    with loggers.LOGGERS.restored():
        loggers.register_logger(kind)
        loggers.register_logger(needy)
        with pytest.raises(InvalidInput, match="another logger has this name"):
            loggers.register_logger(loggers.LoggerKind(name="jsonl", open=kind.open))
        with pytest.raises(InvalidInput, match=r"'needy' needs the package no_such_package.*installed. Install it\."):
            loggers.check_loggers(["needy"])
        with loggers.open_loggers(["lines", "jsonl"], RunFolder(tmp_path), {}) as opened:
            for step in (1, 2):
                for logger in opened:
                    logger.log(step, {"train/loss": step / 2})
    assert Lines.seen == [(1, {"train/loss": 0.5}), (2, {"train/loss": 1.0})]
    lines = [json.loads(line) for line in (tmp_path / "logged.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "train/loss": 0.5}, {"step": 2, "train/loss": 1.0}]
