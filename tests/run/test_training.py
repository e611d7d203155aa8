"""Training with a pipeline changes the weights as plain training does."""

import copy
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from run_models import BATCH, STAGES, cross_entropy, fan, fan_batch
from run_plans import hand_split, plan_for, plan_of
from torch import Tensor, nn

from graphpipe.errors import InvalidInput, NonFiniteLoss, PeerLost
from graphpipe.model.capture.capture import capture
from graphpipe.model.dag_module import DagModule
from graphpipe.model.split.split import split
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.run.faults.rank_status import STATUS_FOLDER, StatusWriter
from graphpipe.run.stage.edge_values import edge_specs, gradient_edges
from graphpipe.training.train_rank import reporting_status


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9, weight_decay=0.01)


def halve(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def build(model: DagModule, cut: str = "mixed", loss_fn: Any = cross_entropy, **options: Any) -> Pipeline:
    inputs, _ = fan_batch()
    plan = plan_of(model, inputs, STAGES[cut], BATCH)
    optimizer, given = options.pop("optimizer", sgd), PipelineOptions(**options)
    return Pipeline(plan, hand_split(model, plan, inputs), loss_fn, optimizer, options=given)


def train_unpartitioned(
    model: nn.Module, steps: int, clip_norm: float | None, scheduler: Callable[..., Any] | None
) -> None:
    optimizer = sgd(parameter for parameter in model.parameters() if parameter.requires_grad)
    rates = scheduler(optimizer) if scheduler else None
    for step in range(steps):
        inputs, targets = fan_batch(seed=step)
        optimizer.zero_grad()
        cross_entropy(model(**inputs), targets).backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        if rates:
            rates.step()


def assert_same_state(model: nn.Module, expected: nn.Module) -> None:
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize(("clip_norm", "scheduler"), [(None, None), (0.05, None), (1e6, halve), (0.05, halve)])
def test_weights_equal_those_of_plain_training(clip_norm: float | None, scheduler: Any) -> None:
    model = fan()
    twin = copy.deepcopy(model)
    pipeline = build(model, clip_norm=clip_norm, lr_scheduler=scheduler)
    for step in range(4):
        pipeline.step(*fan_batch(seed=step))
    train_unpartitioned(twin, 4, clip_norm, scheduler)
    pipeline.sync_model()
    assert_same_state(model, twin)


def test_clipping_and_schedule_do_change_something() -> None:
    ends = []
    choices: list[dict[str, Any]] = [{}, {"clip_norm": 0.05}, {"lr_scheduler": halve}]
    for options in choices:
        model = fan()
        pipeline = build(model, **options)
        for step in range(2):
            pipeline.step(*fan_batch(seed=step))
        ends.append(model.get_submodule("stem")[0].weight.detach().clone())  # pyright: ignore[reportIndexIssue]
    assert not torch.allclose(ends[0], ends[1])
    assert not torch.allclose(ends[0], ends[2])


@pytest.mark.parametrize("frozen", [("stem",), ("stem", "left"), ("left",), ("head",), ("stem", "left", "right")])
def test_frozen_parts_stay_and_get_no_gradient(frozen: tuple[str, ...]) -> None:
    model = fan()
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    twin = copy.deepcopy(model)
    pipeline = build(model, "four")
    pipeline.step(*fan_batch(seed=0))
    train_unpartitioned(twin, 1, None, None)
    assert_same_state(model, twin)
    for name, gradient in pipeline.gradients().items():
        assert (gradient is None) == name.startswith(frozen), name


@pytest.mark.parametrize(
    ("frozen", "without"),
    [
        ((), []),
        (("stem",), [("stem", "left"), ("stem", "right")]),
        (("stem", "left"), [("stem", "left"), ("stem", "right"), ("left", "head")]),
        (("left",), []),
    ],
)
def test_the_plan_and_the_runtime_agree_on_where_gradients_go(
    frozen: tuple[str, ...], without: list[tuple[str, str]]
) -> None:
    model, inputs = fan(), fan_batch()[0]
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    graph = capture(model, inputs, method="declared")
    plan = plan_for(graph, [([op.name], [n], 4) for n, op in enumerate(graph.ops)], BATCH)
    assert plan.gradient_edges == gradient_edges(edge_specs(split(model, plan)))
    one_way = [plan.edges[n] for n in range(len(plan.edges)) if n not in plan.gradient_edges]
    assert [(plan.stages[edge.source].name, plan.stages[edge.target].name) for edge in one_way] == without


def test_a_stage_with_unused_output_does_not_train() -> None:
    model = DagModule(
        {"a": nn.Linear(5, 4), "b": First(), "c": nn.Linear(5, 4)},
        inputs={"a": ["x"], "c": ["x"], "b": ["a", "c"]},
    )
    inputs, targets = {"x": fan_batch()[0]["x"]}, fan_batch()[1]
    plan = plan_of(model, inputs, [(["a"], [0], 4), (["c"], [1], 6), (["b"], [2], 3)], BATCH)
    pipeline = Pipeline(plan, hand_split(model, plan, inputs), cross_entropy)
    pipeline.step(inputs, targets)
    found = pipeline.gradients()
    assert found["a.weight"] is not None
    assert found["a.weight"].abs().sum() > 0
    assert found["c.weight"] is None  # as in plain PyTorch, so that AdamW does not decay it


class First(nn.Module):
    """Ignores its second argument."""

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        del second
        return first


def test_a_stage_may_begin_in_place() -> None:
    model = DagModule(
        {"a": nn.Linear(5, 4), "b": nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3))},
        inputs={"a": ["x"], "b": ["a"]},
    )
    inputs, targets = {"x": fan_batch()[0]["x"]}, fan_batch()[1]
    plan = plan_of(model, inputs, [(["a"], [0], 4), (["b"], [1], 6)], BATCH)
    twin = copy.deepcopy(model)
    cross_entropy(twin(**inputs), targets).backward()
    pipeline = Pipeline(plan, hand_split(model, plan, inputs), cross_entropy)
    pipeline.step(inputs, targets)
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(pipeline.gradients()[name], parameter.grad, rtol=1e-5, atol=1e-7)


def test_replicas_begin_a_step_with_the_same_weights_and_buffers() -> None:
    model = fan(dropout=0.5, norm=True)
    inputs, _ = fan_batch()
    plan = plan_of(model, inputs, STAGES["replicas"], BATCH)
    pipeline = Pipeline(plan, hand_split(model, plan, inputs), cross_entropy, sgd)
    pipeline.step(*fan_batch())
    pipeline._parts.batches.user.take()  # pyright: ignore[reportPrivateUsage]
    first, second = (replica.program.module for replica in pipeline._worker.of_stage(0))  # pyright: ignore[reportPrivateUsage]
    assert first.state_dict().keys() == second.state_dict().keys()
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    assert int(model.state_dict()["left.1.num_batches_tracked"]) == BATCH // 4


def test_modes_set_between_steps_reach_every_replica() -> None:
    model = fan(dropout=0.5)
    pipeline = build(model, "replicas", optimizer=None)
    model.eval()
    inputs, targets = fan_batch()
    expected = cross_entropy(model(**inputs), targets).item()
    assert pipeline.step(inputs, targets) == pytest.approx(expected, rel=1e-6)
    model.train()
    assert pipeline.step(inputs, targets) != pytest.approx(expected, rel=1e-6)


def test_targets_may_be_a_tree() -> None:
    def weighted(output: Tensor, targets: dict[str, Any]) -> Tensor:
        labels, (weights,) = targets["labels"], targets["more"]
        return (nn.functional.cross_entropy(output, labels, reduction="none") * weights).mean()

    model = fan()
    inputs, labels = fan_batch()
    targets = {"labels": labels, "more": (torch.linspace(0, 2, BATCH),)}
    expected = weighted(model(**inputs), targets).item()
    assert build(model, "four", weighted).step(inputs, targets) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("samples", "targets", "message"),
    [
        (14, 14, "the mini-batch has 14 samples, the plan is for 12"),
        (12, 11, "target 0 holds 11 samples, input 'x' holds 12"),
    ],
)
def test_a_wrong_mini_batch_is_refused_and_the_next_one_trains(samples: int, targets: int, message: str) -> None:
    pipeline = build(fan())
    with pytest.raises(InvalidInput, match=message):
        pipeline.step(fan_batch(samples)[0], fan_batch(targets)[1])
    assert pipeline.steps == 0
    assert pipeline.step(*fan_batch()) > 0


def test_a_loss_that_is_not_a_scalar_is_refused() -> None:
    def per_sample(output: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, targets, reduction="none")

    with pytest.raises(InvalidInput, match=r"returned a torch.float32 tensor of shape \(2,\)"):
        build(fan(), "four", per_sample).step(*fan_batch())


def test_samples_of_another_shape_are_refused_before_anything_is_sent() -> None:
    model = DagModule({"a": nn.Tanh(), "b": nn.Linear(5, 3)}, inputs={"a": ["x"], "b": ["a"]})
    inputs, targets = {"x": fan_batch()[0]["x"]}, fan_batch()[1]
    plan = plan_of(model, inputs, [(["a"], [0], 4), (["b"], [1], 6)], BATCH)
    pipeline = Pipeline(plan, hand_split(model, plan, inputs), cross_entropy)
    with pytest.raises(InvalidInput, match=r"value 'a' is float32\[4, 6\], its consumers expect float32\[4, 5\]"):
        pipeline.step({"x": torch.zeros(BATCH, 6)}, targets)


def test_an_infinite_loss_names_the_loss_stage_and_changes_no_weight() -> None:
    model = fan()
    before = copy.deepcopy(model)
    pipeline = build(model, "four", lambda output, targets: output.sum() * float("inf"))
    with pytest.raises(NonFiniteLoss, match="step 1, stage 'head'"):
        pipeline.step(*fan_batch())
    for name, tensor in before.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


def test_the_output_is_released_once_the_loss_is_computed() -> None:
    model = fan()
    outputs: list[weakref.ref[Tensor]] = []
    gone: list[bool] = []

    def loss(output: Tensor, _: Tensor) -> Tensor:
        outputs.append(weakref.ref(output))
        return output.sum(1).mean()

    for parameter in model.get_submodule("head").parameters():
        parameter.register_hook(lambda _: gone.append(outputs[-1]() is None))
    build(model, "four", loss).step(*fan_batch())
    assert outputs
    assert gone
    assert all(gone)


def test_under_torchrun_a_rank_that_fails_says_where_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Under torchrun, unlike under our launcher, the rank status files are not read.
    monkeypatch.delenv(STATUS_FOLDER, raising=False)
    status = StatusWriter(1, ["s0", "s1"])
    monitor = SimpleNamespace(last_status="stage 's1', step 3", status=status)
    pipeline = SimpleNamespace(world=SimpleNamespace(rank=1, size=2), monitor=monitor)
    with pytest.raises(PeerLost), reporting_status(cast(Pipeline, pipeline)):
        raise PeerLost("rank 0 died", remedy="Look there.")
    assert capsys.readouterr().err == "rank 1 failed: stage 's1', step 3\n"
    assert status.last().error.startswith("PeerLost: rank 0 died")
