"""A checkpoint that does not fit the run is refused on every rank, and values are restored with their types."""

import copy
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from run_checkpoints import pipeline_of, resume, train_and_save
from run_models import BATCH, STAGES, cross_entropy, fan, fan_batch
from run_plans import hand_split, plan_of
from run_ranks import run_ranks
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR, SequentialLR

from graphpipe.errors import InvalidInput, OutOfMemory
from graphpipe.model import DagModule
from graphpipe.run import Pipeline
from graphpipe.run.checkpoint.checkpoints import Checkpoints
from graphpipe.run.checkpoint.json_values import to_json_value, with_types_of
from graphpipe.run.checkpoint.optimizer_state import extract_optimizer_state, restore_optimizer_state


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a checkpoint of step 1."""
    made = tmp_path_factory.mktemp("made")
    train_and_save("four", str(made), [1], {})
    return made


def refusal(pipeline: Pipeline, folder: Path) -> str:
    with pytest.raises(InvalidInput) as caught:
        Checkpoints(pipeline, folder).load()
    assert pipeline.steps == 0
    return str(caught.value)


def pipeline_for(model: DagModule, batch: int = BATCH) -> Pipeline:
    inputs, _ = fan_batch()
    plan = plan_of(model, inputs, STAGES["four"], batch)
    return Pipeline(plan, hand_split(model, plan, inputs), cross_entropy, torch.optim.AdamW)


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    message = refusal(pipeline_of("four")[0], tmp_path / "nowhere")
    assert (
        message == f"{tmp_path}/nowhere: holds no checkpoint. Checkpoints are made with train.checkpoint_every=STEPS."
    )


def test_memory_that_runs_out_while_a_checkpoint_is_read_is_not_a_lost_rank(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `RuntimeError` of torch, after which an elastic run counted the rank as lost and went on with less memory."""
    pipeline, _ = pipeline_of("four")

    def run_out(*_: object) -> None:
        torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr("graphpipe.run.checkpoint.restore.read_parameters", run_out)
    with pytest.raises(OutOfMemory, match=r"step 1, reading its checkpoint: out of memory: .*checkpoint is unchanged"):
        Checkpoints(pipeline, folder).load()
    monkeypatch.undo()
    assert Checkpoints(pipeline, folder).load().step == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.left.append(nn.Linear(8, 8)), "it has no 'left.3.weight', which this model has"),
        (lambda model: model.stem.pop(0), "it has 'stem.0.weight', which this model does not have"),
        (lambda model: model.stem.double(), r"'stem.0.weight' is float32[8, 5] in it and float64[8, 5] in this model"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(change: Any, message: str, folder: Path) -> None:
    model = fan()
    pipeline = pipeline_for(model)
    twin = copy.deepcopy(model)
    change(model)
    assert f"the checkpoint is of another model: {message}" in refusal(pipeline, folder)
    untouched = {name: each for name, each in model.state_dict().items() if name in twin.state_dict()}
    for name, each in untouched.items():
        assert torch.equal(each.float(), twin.state_dict()[name]), name


def test_another_batch_size_or_seed_is_refused(folder: Path) -> None:
    assert "was trained with mini-batches of 12, this run has mini-batches of 24" in refusal(
        pipeline_for(fan(), batch=24), folder
    )
    assert "was trained with seed 0, this run has seed 3. Choose seed 0" in refusal(
        pipeline_of("four", seed=3)[0], folder
    )


def test_every_rank_refuses(folder: Path, tmp_path: Path) -> None:
    for outcome in run_ranks(resume, 2, tmp_path, "shared", str(folder), {"norm": True}):
        assert "the checkpoint is of another model: it has no 'left.1.weight'" in outcome.error


def sgd(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def one_group(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def test_another_optimizer_is_refused(folder: Path) -> None:
    message = refusal(pipeline_of("four", optimizer=sgd)[0], folder)
    assert "parameter 'stem.0.weight' was trained with AdamW, this run uses SGD" in message
    message = refusal(pipeline_of("four", optimizer=one_group)[0], folder)
    expected = "parameters 'stem.0.weight' and 'stem.0.bias' had weight_decay 0.1 and 0.0, this run has them in one"
    assert expected in message


def test_parameters_that_were_frozen_when_saved_are_refused(tmp_path: Path) -> None:
    model = fan()
    model.get_submodule("left").requires_grad_(False)
    pipeline = pipeline_for(model)
    checkpoints = Checkpoints(pipeline, tmp_path)
    pipeline.step(*fan_batch())
    checkpoints.save()
    checkpoints.wait()
    assert "has no optimizer state of parameter 'left.0.weight'" in refusal(pipeline_for(fan()), tmp_path)


def steps_then_cosine(optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Return a schedule with nested state, which contains counters whose keys are numbers."""
    first = MultiStepLR(optimizer, [1, 3], gamma=0.5)
    second = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    return SequentialLR(optimizer, [first, second], [4])


def rates(optimizer: torch.optim.Optimizer, scheduler: LRScheduler, steps: int) -> list[list[float]]:
    found: list[list[float]] = []
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        found.append([group["lr"] for group in optimizer.param_groups])
    return found


def test_learning_rates_continue_when_parameter_groups_are_reordered() -> None:
    a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    names = {id(a): "a", id(b): "b"}
    first = torch.optim.SGD([{"params": [a], "lr": 1.0}, {"params": [b], "lr": 10.0}])
    schedule = steps_then_cosine(first)
    rates(first, schedule, 2)
    state, _ = extract_optimizer_state(first, schedule, names)
    other = torch.optim.SGD([{"params": [b], "lr": 3.0}, {"params": [a], "lr": 4.0}])
    new = steps_then_cosine(other)
    restore_optimizer_state(other, new, names, [state], {})
    expected = [list(reversed(pair)) for pair in rates(first, schedule, 6)]
    assert rates(other, new, 6) == expected
    assert expected[0] == [2.5, 0.25]  # the second milestone
    assert expected[-1] != expected[0]


def test_optimizer_state_that_is_not_a_tensor_is_restored() -> None:
    a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    first, second = torch.optim.SGD([a], lr=0.1), torch.optim.SGD([b], lr=0.2)
    first.state[a] = {"calls": 3, "last": None, "seen": torch.arange(2.0)}
    state, tensors = extract_optimizer_state(first, None, {id(a): "a"})
    assert list(tensors) == ["a:seen"]
    restore_optimizer_state(second, None, {id(b): "a"}, [state], tensors)
    assert second.state[b]["seen"].tolist() == [0.0, 1.0]
    assert {key: second.state[b][key] for key in ("calls", "last")} == {"calls": 3, "last": None}
    assert second.param_groups[0]["lr"] == 0.1


def test_json_values_are_restored_with_their_types() -> None:
    saved: dict[str, Any] = {
        "betas": (0.9, 0.99),
        "milestones": Counter({30: 2}),
        "lr": torch.tensor(0.5),
        "nested": [{"on": True}, None, "word"],
    }
    own: dict[str, Any] = {
        "betas": (0.0, 0.0),
        "milestones": Counter({30: 1}),
        "lr": torch.tensor(0.0),
        "nested": [{"on": False}, None, ""],
    }
    found = with_types_of(own, json.loads(json.dumps(to_json_value(saved, "test"))))
    assert found == saved
    assert [type(each) for each in found.values()] == [tuple, Counter, Tensor, list]
    with pytest.raises(InvalidInput, match="test, best: nan cannot be saved"):
        to_json_value({"best": float("nan")}, "test")
    # ReduceLROnPlateau begins with an infinite best value.
    infinite = json.loads(json.dumps(to_json_value({"best": -float("inf")}, "test")))
    assert with_types_of({"best": 1.0}, infinite) == {"best": -float("inf")}


def test_saving_refuses_a_value_that_a_checkpoint_cannot_hold(tmp_path: Path) -> None:
    def watched(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": list(parameters), "watcher": object()}], lr=0.1)

    pipeline, _ = pipeline_of("four", optimizer=watched)
    pipeline.step(*fan_batch())
    with pytest.raises(InvalidInput, match=r"SGD, watcher: <object object at .* cannot be saved in a checkpoint"):
        Checkpoints(pipeline, tmp_path).save()
    with pytest.raises(InvalidInput, match="keep: is 0, must be at least 1"):
        Checkpoints(pipeline, tmp_path, keep=0)
