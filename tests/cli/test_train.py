"""`graphpipe train` from end to end, on two processes."""

import json
import socket
from importlib import import_module
from pathlib import Path

import pytest
import torch
from cli_cases import TASK, Run, torchrun
from safetensors.torch import load_file

from graphpipe.files.json_body import to_body
from graphpipe.launch.first_failure import RankFailed
from graphpipe.plans import Plan
from graphpipe.trace import Trace
from graphpipe.training.run_folder.metrics_log import StepMetrics
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.run_folder.train_result import TrainResult

RESULT = {
    *("stages", "depth", "steps", "loss_first", "loss_last", "accuracy"),
    *("step_seconds_predicted", "step_seconds_measured"),
}
FILES = {
    *("config.json", "plan.json", "costs.json", "trace-predicted.json", "trace-measured.json", "trace-chrome.json"),
    *("metrics.jsonl", "metrics.json", "evaluations.jsonl", "model.safetensors", "events", ".lock"),
    *("capture.json", "capture.safetensors", "costs-learned.json"),
}


def by_hand(steps: int, lr: float) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return the losses and weights of the same training in plain PyTorch."""
    scope: dict[str, object] = {"__name__": "tiny"}
    exec(TASK, scope)
    torch.manual_seed(0)
    task = scope["task"]()  # type: ignore[operator]
    optimizer = torch.optim.AdamW(task.module.parameters(), lr=lr, weight_decay=0.0)
    losses: list[float] = []
    batches = [batch for epoch in range(steps) for batch in task.epoch(epoch, 16, 0)]
    for inputs, targets in batches[:steps]:
        optimizer.zero_grad()
        loss = task.loss_fn(task.module(**inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, task.module.state_dict()


@pytest.mark.usefixtures("forked_ranks")
def test_train_prints_the_result_and_writes_the_run(run: Run, config: Path) -> None:
    ran = run("train", config, "--json", "train.steps=7")
    assert ran.code == 0, ran.err
    result = ran.json
    assert result.keys() >= RESULT
    folder = Path(result["directory"])
    assert folder == Path("runs/tiny-1")
    assert {path.name for path in folder.iterdir()} == FILES
    plan, predicted, measured = (
        Plan.load(folder / "plan.json"),
        Trace.load(folder / "trace-predicted.json"),
        Trace.load(folder / "trace-measured.json"),
    )
    assert plan.prediction is not None
    assert plan.prediction.step_seconds == predicted.step_seconds == result["step_seconds_predicted"]
    assert (predicted.source, measured.source) == ("simulated", "measured")
    assert measured.plan_fingerprint == plan.fingerprint
    assert 0 < result["step_seconds_measured"] < 5
    assert 0 <= result["accuracy"] <= 1
    for words in ("Ranks", "memory predicted", "step 7/7", "Predicted against measured", "held-out accuracy"):
        assert words in ran.err
    losses, weights = by_hand(7, lr=0.05)
    logged = [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert logged == pytest.approx(losses, rel=1e-5)
    assert (result["loss_first"], result["loss_last"]) == (logged[0], logged[-1])
    trained = load_file(folder / "model.safetensors")
    assert trained.keys() == weights.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(trained[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("forked_ranks")
def test_precision_and_engine_come_from_the_configuration(run: Run, config: Path) -> None:
    def losses(*words: str) -> list[float]:
        ran = run("train", config, "--json", "plan.costs=estimate", "train.steps=4", *words)
        assert ran.code == 0, ran.err
        lines = (Path(ran.json["directory"]) / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]

    whole = losses()
    half = losses("train.precision=bf16", "train.engine=fsdp2")
    plan = "runs/tiny-2/plan.json"
    refused = run("train", config, "train.steps=1", "--plan", plan)
    assert refused.code == 2
    assert "train.precision: is fp32, but the plan counts the memory and messages of bf16." in refused.err
    assert half == pytest.approx(whole, rel=0.05)
    assert half != pytest.approx(whole, rel=1e-5)


@pytest.mark.usefixtures("forked_ranks")
def test_a_failing_rank_is_reported_once_with_exit_code_4(run: Run, config: Path) -> None:
    ran = run("train", config, "task=tiny.py:nan_task", "--json")
    assert ran.code == 4
    assert ran.out == ""
    assert ran.err.count("error: ") == 1
    assert "NonFiniteLoss: step 1, stage " in ran.err
    assert "Traceback" not in ran.err
    assert not Path("runs/tiny-1/metrics.json").exists()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_an_interrupted_training_says_how_to_resume(
    run: Run, config: Path, checkpoint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        if checkpoint:
            Path("runs/tiny-1/checkpoints/step-00000003").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("graphpipe.training.train_locally"), "launch", interrupt)
    ran = run("train", config)
    assert ran.code == 130
    assert ran.err.splitlines()[-1] == "graphpipe: interrupted"
    assert ("--resume runs/tiny-1 continues" in ran.out) is checkpoint
    assert ("train.checkpoint_every=STEPS makes some" in ran.out) is not checkpoint


def test_a_rank_that_is_lost_after_the_results_were_written_is_not_an_error(
    run: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank was stopped before it had noted that its work was done, but rank 0 had written all results."""

    def lose(*_: object, **__: object) -> None:
        folder = RunFolder(Path("runs/tiny-1"))
        history = [StepMetrics(step=1, loss=1.0, seconds=1.0)]
        result = TrainResult.of(Plan.load(folder.plan), history, loss=None, accuracy=None, recoveries=())
        folder.metrics.write_text(json.dumps(to_body(result)))
        raise RankFailed(1, "was stopped", kind="", host="", seen=0.0, failed=(1,))

    monkeypatch.setattr(import_module("graphpipe.training.train_locally"), "launch", lose)
    ran = run("train", config)
    assert ran.code == 0
    assert "rank 1: was stopped. The other ranks were stopped. The results were written before" in ran.out + ran.err


@pytest.mark.parametrize("word", ["plan.micro_batch=500", "plan.planner=grafpipe", "plan.schedule=zb-h2"])
def test_plan_settings_are_checked_before_profiling(run: Run, config: Path, word: str) -> None:
    ran = run("train", config, word, "plan.costs=profile")
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert not Path("runs").exists()


def test_a_port_in_use_is_reported_before_anything_runs(run: Run, config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = run("train", config, f"run.port={port}")
    assert ran.code == 2
    assert ran.err.startswith(f"graphpipe: error: port {port} cannot be used: Address already in use")
    assert not Path("runs").exists()


@pytest.mark.usefixtures("forked_ranks")
def test_torchrun_starts_the_ranks(config: Path) -> None:
    done = torchrun(2, "train", config, "--json", "train.epochs=1")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result.keys() >= RESULT
    assert result["steps"] == 4
    assert {path.name for path in Path(result["directory"]).iterdir()} == FILES


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_ranks_that_the_plan_does_not_use_wait_along(config: Path) -> None:
    """torchrun starts as many ranks as there are GPUs, and a plan for fewer was an error: "Start 2 processes"."""
    done = torchrun(3, "train", config, "--json", "train.epochs=1", "train.checkpoint_every=2")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["steps"] == 4
    assert {path.name for path in Path(result["directory"]).iterdir()} == FILES | {"checkpoints"}
    sentence = "graphpipe: warning: rank 2 of 3 only waits for the others: the plan uses 2 devices"
    assert done.stderr.count(sentence) == 1


def test_a_plan_for_another_batch_or_model_is_refused(run: Run, config: Path) -> None:
    planned = run("plan", "tiny.py:model", "--cluster", "local:2", "--batch", 8, "-o", "plan.json")
    assert planned.code == 0
    ran = run("train", config, "--plan", "plan.json")
    assert ran.code == 2
    assert "the plan is for batches of 8, the configuration says 16" in ran.err
    Path("tiny.py").write_text(TASK.replace("nn.Linear(8, 1)", "nn.Linear(8, 1, bias=False)"))
    ran = run("train", config, "train.batch_size=8", "--plan", "plan.json")
    assert ran.code == 2
    assert "made for another model" in ran.err
    assert not Path("runs").exists()
