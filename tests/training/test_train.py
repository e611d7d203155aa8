"""`gp.train`: the same training from Python as from the command line."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_cases import Run
from safetensors.torch import load_file

import graphpipe as gp
from graphpipe.files.json_document import write_document
from graphpipe.planning.by_hand import HandPlan, HandStage
from graphpipe.plans import Plan
from graphpipe.run.faults.injector import InjectedError
from graphpipe.run.worker.recorder import Recorder
from graphpipe.schedule.segments.planned_versions import with_policy
from graphpipe.trace import Trace
from graphpipe.training.config.from_toml import read_config
from graphpipe.training.loop.segment_ends import segment_ends
from graphpipe.training.loop.steps import SPREAD, TRACED, is_recorded
from graphpipe.training.make_plan import plan_with_costs
from graphpipe.training.run_folder.metrics_log import read_metrics_log
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.task.task import load_task
from graphpipe.training.train_rank import train_rank

SCRIPT = """
import sys

import graphpipe as gp

sys.argv = []
run = gp.train("tiny.toml", overrides=["train.steps=3"], tell=None)
print(run.result.steps, run.folder.weights)
sys.argv = ["script.py"]  # which runpy restores
"""
"""Without `if __name__ == "__main__"`, and without sys.argv, as in an embedded Python."""


MODULES = """
without_note = epoch


def epoch(number, batch_size, seed):
    import sys
    if rank := os.environ.get("RANK"):
        with open(f"modules-{rank}", "w") as file:
            file.write(" ".join(sys.modules))
    return without_note(number, batch_size, seed)
"""
"""Appended to a task: notes what a rank has imported before its first step."""


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("config")
def test_a_rank_imports_nothing_that_it_does_not_need() -> None:
    """It takes the captured model from the launcher: to capture it takes longer than all else before the first step."""
    with Path("tiny.py").open("a") as task:
        task.write(MODULES)
    gp.train("tiny.toml", overrides=["train.steps=3"], tell=None)
    for imported in (set(Path(f"modules-{rank}").read_text().split()) for rank in range(2)):
        assert "graphpipe.run.pipeline" in imported
        heavy = {"torch.export._trace", "torch._dynamo", "sympy", "graphpipe.planners.registry"}
        assert imported & heavy == set()


@pytest.mark.usefixtures("forked_ranks")
def test_a_plain_script_trains_as_the_command_line_does(run: Run, config: Path) -> None:
    Path("script.py").write_text(SCRIPT)
    ran = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["3", "runs/tiny-1/model.safetensors"]
    by_command = run("train", config, "train.steps=3")
    assert by_command.code == 0, by_command.err
    assert losses(Path("runs/tiny-1")) == losses(Path("runs/tiny-2"))
    assert {path.name for path in Path("runs/tiny-1").iterdir()} == {
        path.name for path in Path("runs/tiny-2").iterdir()
    }


@pytest.mark.usefixtures("forked_ranks")
def test_a_configuration_and_a_plan_may_be_values(config: Path) -> None:
    lines: list[str] = []
    plans: list[Plan] = []
    settings = read_config(config, ["train.steps=2", "train.checkpoint_every=1", "run.name=''"])
    before, handler = torch.get_rng_state(), signal.getsignal(signal.SIGINT)
    first = gp.train(settings, tell=lines.append, on_plan=plans.append)
    assert torch.equal(torch.get_rng_state(), before)
    assert signal.getsignal(signal.SIGINT) is handler
    assert first.folder.path == Path("runs/run-1")
    assert plans == [first.plan]
    assert first.plan.prediction is not None
    assert lines[0].startswith("this plan trains ")
    assert lines[-1] == f"training on {len(first.plan.used_devices)} local processes, into runs/run-1"
    assert (first.result.steps, first.rank) == (2, 0)
    resumed = gp.train(
        settings, overrides=["train.steps=3"], plan=first.plan, resume=first.folder.path, tell=lines.append
    )
    assert resumed.folder == first.folder
    assert resumed.result.steps == 3
    assert resumed.result.loss_first == first.result.loss_first


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(30, [False] * 4 + [True] * 26), (2, [False, True]), (1, [True])],
    ids=["30 steps", "2 steps", "1 step"],
)
def test_the_first_steps_are_not_recorded(
    steps: int, expected: list[bool], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step was recorded, and before every step all ranks waited for each other.

    After two steps, a forward had "taken 22.85x what was predicted": the first one is also checked.
    """
    settings = read_config(config, [f"train.steps={steps}"])
    task = load_task(settings.task, settings.folder, settings.train.seed)
    graph, cluster = gp.capture(task.module, task.example_inputs), gp.Cluster.preset("local:1")
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=settings.train.batch_size)
    recorded: list[bool] = []
    begin = Recorder.begin

    def noted(recorder: Recorder) -> None:
        recorded.append(recorder.on)
        begin(recorder)

    monkeypatch.setattr(Recorder, "begin", noted)
    folder = RunFolder(Path("run"))
    folder.path.mkdir()
    assert train_rank(settings, task, plan, folder) is not None
    assert recorded == expected
    assert Trace.load(folder.measured_trace).spans


def test_few_steps_of_a_long_training_are_recorded() -> None:
    """Before each of them all ranks wait for each other. They are spread, because the pace of a machine changes.

    Only the last five were recorded, and costs learned from them were off by what these happened to take.
    """
    found = [end for end in range(1, 1001) if is_recorded(end - 1, end, 1000)]
    assert found == [*range(150, 1000, 50), *range(996, 1001)]
    segments = [end for end in range(4, 401, 4) if is_recorded(end - 4, end, 400)]
    assert len(segments) == TRACED // 4 + SPREAD - 2


def test_what_the_command_line_refuses_raises_the_same_sentence(run: Run, config: Path) -> None:
    for overrides, resume in (
        (["train.stepps=3"], None),
        (["train.steps=0"], None),
        (["task=tiny.py:not_a_model"], None),
        (["plan.planner=grafpipe"], None),
        ([], "runs/none"),
    ):
        with pytest.raises(gp.InvalidInput) as caught:
            gp.train(config, overrides=overrides, resume=resume)
        ran = run("train", config, *overrides, *(["--resume", resume] if resume else []))
        assert (ran.code, ran.err.strip().splitlines()[-1]) == (2, f"graphpipe: error: {caught.value}")
    with pytest.raises(gp.InvalidInput, match="no-such-file"):
        gp.train("no-such-file.toml")
    assert not Path("runs").exists()


@pytest.mark.usefixtures("config", "forked_ranks")
def test_a_training_splits_the_layers_that_its_configuration_names() -> None:
    plain, split = (
        gp.train("tiny.toml", overrides=["train.steps=3", f"plan.split={names}"], tell=None)
        for names in ("none", "b:2")
    )
    graph = Plan.load(split.folder.plan).graph
    assert graph.origin is not None
    assert [each.parts for each in graph.origin.split_ops] == [("b.part0", "b.part1")]
    weights = [load_file(each.folder.weights) for each in (plain, split)]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.usefixtures("config", "forked_ranks")
def test_a_training_looks_into_the_submodules_that_its_configuration_names() -> None:
    found = gp.train("tiny.toml", overrides=["train.steps=1", "plan.look_into=*"], tell=None)
    origin = Plan.load(found.folder.plan).graph.origin
    assert origin is not None
    assert origin.split == ("*",)


def test_segments_end_at_checkpoints_and_a_resumed_run_has_the_same_ones(config: Path) -> None:
    """A run that fails in the middle of a segment goes on from its last drain, bit for bit."""
    overrides = ["train.steps=14", "train.checkpoint_every=6", "train.segment_steps=4", "optimizer.name=adam"]
    settings = read_config(config, overrides)
    task = load_task(settings.task, settings.folder, 0)
    graph, cluster = gp.capture(task.module, task.example_inputs), gp.Cluster.preset("local:2")
    assert [*segment_ends(settings.train, 0, 14, flushes=False)] == [4, 6, 8, 12, 14]
    assert [*segment_ends(settings.train, 6, 14, flushes=False)] == [8, 12, 14]
    assert [*segment_ends(settings.train, 0, 3, flushes=True)] == [1, 2, 3]
    size = settings.train.batch_size
    stages = [HandStage(ops=ops, devices=(at,), micro_batch=size // 2) for at, ops in enumerate((("[ab]",), ("sum*",)))]
    plan = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=size, stages=stages)
    plan = with_policy(plan, "stash")
    assert max(stage.versions for stage in plan.stages) > 1
    found: list[list[float]] = []
    for name, faults in (("whole", ""), ("failed", "raise@rank0:step10:phase=backward")):
        folder = RunFolder(Path(name))
        folder.path.mkdir()
        given = settings if not faults else replace(settings, train=replace(settings.train, faults=(faults,)))
        if faults:
            with pytest.raises(InjectedError):
                train_rank(given, load_task(settings.task, settings.folder, 0), plan, folder)
            assert len(read_metrics_log(folder.metrics_log)) == 8
        fresh = load_task(settings.task, settings.folder, 0)
        assert train_rank(given, fresh, plan, folder, resume=bool(faults)) is not None
        found.append([step.loss for step in read_metrics_log(folder.metrics_log)])
    assert found[0] == found[1]
    assert len(found[0]) == 14
    # Stages written by hand were trained with a flush, whatever plan.weights said.
    write_document(config.parent / "stages.json", "stages", HandPlan(stages=tuple(stages)))
    for more in ([], ["plan.stages=stages.json"]):
        chosen = read_config(config, ["plan.weights=stash", "cluster=local:2", *more])
        assert plan_with_costs(chosen, graph, plan.costs, cluster).weights == "stash"
