"""What may go wrong where several versions of weights are alive: recomputation, buffers, failures, checkpoints."""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from run_plans import hand_split
from run_versions import (
    batch_of,
    loss_fn,
    model_of,
    pipeline_under,
    plan_under,
    train_reference,
    train_segments,
)
from torch import Tensor, nn
from weight_policies import POLICIES

from graphpipe.errors import InvalidInput, NonFiniteLoss
from graphpipe.plans import Plan
from graphpipe.plans.stage import Predictor, WeightPolicy
from graphpipe.run import Pipeline, PipelineOptions
from graphpipe.run.checkpoint.checkpoints import Checkpoints
from graphpipe.run.faults.fault import parse_faults


def recomputing(plan: Plan) -> Plan:
    return replace(plan, stages=tuple(replace(stage, recompute="full") for stage in plan.stages))


def state_of(pipeline: Pipeline, model: nn.Module) -> dict[str, Tensor]:
    """Return the weights, and the optimizer's state."""
    pipeline.sync_model()
    found = {name: each.clone() for name, each in model.state_dict().items()}
    for scheduled in pipeline.state.optimizers:
        for parameter, kept in scheduled.optimizer.state.items():
            name = pipeline.state.parameter_names[id(parameter)]
            found |= {f"{name}:{key}": value.clone() for key, value in kept.items()}
    return found


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("policy", ["stash", "double-buffer"])
def test_running_statistics_change_in_the_order_of_micro_batches(policy: WeightPolicy) -> None:
    found, expected = train_segments("norm", policy), train_reference("norm", policy)
    assert found["losses"] == expected["losses"]
    assert_equal(found["weights"], expected["weights"])


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_the_models_own_checkpointing_reads_the_version_of_its_forward(schedule: str) -> None:
    found, expected = train_segments("checkpointed", "stash", schedule=schedule), train_reference("chain", "stash")
    assert found["losses"] == expected["losses"]
    assert_equal({name.replace("layers.", ""): each for name, each in found["weights"].items()}, expected["weights"])


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_recomputation_reads_the_version_of_its_forward(schedule: str) -> None:
    found = train_segments("diamond", "stash", schedule=schedule, change=recomputing)
    expected = train_reference("diamond", "stash")
    assert found["losses"] == expected["losses"]
    assert_equal(found["weights"], expected["weights"])


def test_policies_differ_and_segments_of_one_do_not() -> None:
    losses = [train_segments("deep", *policy)["losses"] for policy in [("flush", ""), *POLICIES]]
    assert len({tuple(each) for each in losses}) == len(losses)
    flushed = train_segments("chain", "flush", segments=(3,))
    for policy in POLICIES:
        found = train_segments("chain", *policy, segments=(1, 1, 1))
        assert found["losses"] == flushed["losses"]
        assert_equal(found["weights"], flushed["weights"])


@pytest.mark.parametrize("predictor", ["pipeoptim", "xpipe"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "dampened"])
def test_constant_gradients_are_predicted_exactly(predictor: Predictor, optimizer: str) -> None:
    """Then the weights of a forward are those that flushing would give. The first update has nothing to predict from.

    AdamW's decay is not predicted, so here it does not decay.
    """
    optimizers = {
        "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.02),
        "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.0),
        "dampened": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.9),
    }
    model, batches = model_of("shifts"), [batch_of(0)] * 7
    losses: dict[str, list[float]] = {}
    policies: list[tuple[WeightPolicy, Predictor]] = [("flush", ""), ("stash", ""), ("predict", predictor)]
    for policy, name in policies:
        plan, own = plan_under(model, "chain", policy, name), model_of("shifts")
        mean = lambda output, targets: (output * torch.arange(5.0)).mean()  # noqa: E731
        with Pipeline(plan, hand_split(own, plan, batches[0][0]), mean, optimizers[optimizer]) as pipeline:
            losses[policy] = pipeline.segment(batches[:1]) + pipeline.segment(batches[1:])
    assert losses["predict"] == pytest.approx(losses["flush"], abs=1e-6)
    assert losses["stash"] != pytest.approx(losses["flush"], abs=1e-2)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_segment_with_nan_changes_nothing(policy: tuple[WeightPolicy, Predictor]) -> None:
    nan = parse_faults(["nan@rank0:step4:phase=backward"])
    pipeline, model = pipeline_under("diamond", *policy, faults=nan)
    untouched, other = pipeline_under("diamond", *policy)
    batches = [batch_of(step) for step in range(6)]
    assert pipeline.segment(batches[:2]) == untouched.segment(batches[:2])
    with pytest.raises(NonFiniteLoss, match=r"step 4, .*gradient is not finite.*weights are those before the segment"):
        pipeline.segment(batches[2:])
    assert_equal(state_of(pipeline, model), state_of(untouched, other))
    assert pipeline.steps == 2
    assert pipeline.segment(batches[2:]) == untouched.segment(batches[2:])  # the fault strikes only once


def test_without_rollback_a_segment_with_nan_closes_the_pipeline() -> None:
    nan = parse_faults(["nan@rank0:step2:phase=forward"])
    pipeline, _ = pipeline_under("chain", "stash", faults=nan, rollback=False)
    with pytest.raises(NonFiniteLoss, match=r"step 2, stage 'a', micro-batch 0.*Go on from a checkpoint"):
        pipeline.segment([batch_of(step) for step in range(3)])
    with pytest.raises(InvalidInput, match="closed"):
        pipeline.segment([batch_of(0)])


def test_an_error_in_the_loss_changes_nothing() -> None:
    calls: list[int] = []

    def failing(output: Tensor, targets: Tensor) -> Tensor:
        calls.append(1) if output.requires_grad else None  # not those that compare the loss with its parts
        if len(calls) == 7 and output.requires_grad:
            raise KeyError("of the user")
        return loss_fn(output, targets)

    model = model_of("chain")
    plan = plan_under(model, "chain", "stash")
    pipeline = Pipeline(plan, hand_split(model, plan, batch_of(0)[0]), failing, torch.optim.Adam)
    before = state_of(pipeline, model)
    with pytest.raises(KeyError, match="of the user"):
        pipeline.segment([batch_of(step) for step in range(5)])
    assert_equal(state_of(pipeline, model), before)
    pipeline.segment([batch_of(step) for step in range(5)])


@pytest.mark.parametrize("policy", [("stash", ""), ("predict", "pipeoptim")])
def test_resume_between_segments(policy: tuple[WeightPolicy, Predictor], tmp_path: Path) -> None:
    batches = [batch_of(step) for step in range(7)]
    pipeline, model = pipeline_under("diamond", *policy, optimizer="adamw")
    with pipeline, Checkpoints(pipeline, tmp_path) as checkpoints:
        pipeline.segment(batches[:3])
        checkpoints.save()
        evaluated, _ = pipeline.evaluate(*batch_of(9))
        losses, state = pipeline.segment(batches[3:]), state_of(pipeline, model)
    pipeline, model = pipeline_under("diamond", *policy, optimizer="adamw")
    with pipeline:
        pipeline.segment(batches[5:])  # other weights and state
        assert Checkpoints(pipeline, tmp_path).load().step == 3
        assert pipeline.evaluate(*batch_of(9))[0] == evaluated
        assert pipeline.segment(batches[3:]) == losses
        assert_equal(state_of(pipeline, model), state)


def test_a_flushed_training_goes_on_without_flush(tmp_path: Path) -> None:
    pipeline, _ = pipeline_under("chain on two", "flush")
    with pipeline, Checkpoints(pipeline, tmp_path) as checkpoints:
        pipeline.step(*batch_of(0))
        checkpoints.save()
        following = pipeline.step(*batch_of(1))
    pipeline, _ = pipeline_under("diamond", "stash")
    other, _ = pipeline_under("chain", "stash")
    with other:
        Checkpoints(other, tmp_path).load()
        assert other.segment([batch_of(1), batch_of(2)])[0] == following
    with pipeline:
        assert pipeline.segment([]) == []


def test_learning_rate_schedules_step_with_their_stage() -> None:
    halving = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    found = train_segments("chain", "stash", segments=(1, 1, 1), lr_scheduler=halving)
    assert found["losses"] == train_segments("chain", "flush", segments=(3,), lr_scheduler=halving)["losses"]
    pipeline, _ = pipeline_under("chain", "stash", lr_scheduler=halving)
    pipeline.segment([batch_of(step) for step in range(4)])
    rates = [each.optimizer.param_groups[0]["lr"] for each in pipeline.state.optimizers]
    assert rates == [0.02 / 16] * 4


def refused(policy: tuple[WeightPolicy, Predictor] = ("stash", ""), **options: Any) -> str:
    with pytest.raises(InvalidInput) as error:
        pipeline_under(options.pop("cut", "replicas"), *policy, **options)
    return str(error.value)


def change_all(**changes: Any) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, stages=tuple(replace(stage, **changes) for stage in plan.stages))


def test_what_needs_a_flush_is_refused_before_anything_runs() -> None:
    assert refused(clip_norm=1.0) == (
        "clip_norm: needs the gradients of all stages before any update, but stages update at different times (the "
        "plan's weight policy is 'stash'). Leave it out, or plan with weights='flush'."
    )
    assert "fp16 skips the update of all stages" in refused(precision="fp16")
    assert "'ddp' cannot sum gradients" in refused(engine="ddp")
    assert "Choose engine='allreduce'" in refused(engine="fsdp2")
    assert "stage 'b': shards its optimizer state" in refused(shard_optimizer=True)
    assert "stage 'b': shards its optimizer state" in refused(change=change_all(state="optimizer"))
    assert "recomputes in its backward" in refused(("predict", "pipeoptim"), change=change_all(recompute="full"))


@pytest.mark.parametrize(
    ("optimizer", "what"),
    [
        (torch.optim.RMSprop, "cannot predict the updates of RMSprop, only those of SGD, Adam, AdamW"),
        (partial(torch.optim.SGD, lr=0.1), "SGD has no momentum"),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True), "SGD has Nesterov's momentum"),
    ],
)
def test_optimizers_without_a_prediction_are_refused(optimizer: Any, what: str) -> None:
    model = model_of("chain")
    plan = plan_under(model, "chain", "predict", "pipeoptim")
    with pytest.raises(InvalidInput, match=f"optimizer: .*{what}.*stash"):
        Pipeline(plan, hand_split(model, plan, batch_of(0)[0]), loss_fn, optimizer)


def test_the_options_choose_a_policy_for_any_plan() -> None:
    pipeline, _ = pipeline_under("chain", "flush", weights="stash")
    assert [stage.versions for stage in pipeline.plan.stages] == [3, 2, 2, 1]
    assert pipeline.segment([batch_of(0)] * 4) == pipeline_under("chain", "stash")[0].segment([batch_of(0)] * 4)
    flushing, _ = pipeline_under("chain", "predict", "xpipe", weights="flush")
    assert flushing.plan.weights == "flush"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"weights": "stsh"}, "weights: unknown weight policy 'stsh'. Did you mean 'stash'?"),
        ({"weights": "predict"}, "predictor: is missing, and weights is 'predict'. Choose pipeoptim, spectrain, xpipe"),
        ({"weights": "stash", "predictor": "xpipe"}, "predictor: is 'xpipe', and weights is 'stash'."),
        ({"weights": "predict", "predictor": "xpip"}, "predictor: unknown predictor 'xpip'. Did you mean 'xpipe'?"),
    ]
    for options, what in cases:
        with pytest.raises(InvalidInput) as error:
            PipelineOptions(**options)
        assert what in str(error.value)


def test_mini_batches_of_other_shapes_are_refused() -> None:
    pipeline, _ = pipeline_under("chain", "stash")
    (inputs, targets), other = batch_of(0), {"x": torch.randn(8, 5, 1)}
    with pytest.raises(InvalidInput, match=r"input 'x', mini-batch 1 of the segment: is torch.float32\[8, 5, 1\]"):
        pipeline.segment([(inputs, targets), (other, targets)])
    with pytest.raises(InvalidInput, match="the plan is for 8"):
        pipeline.segment([(inputs, targets), batch_of_size(4)])
    assert pipeline.steps == 0


@pytest.mark.parametrize("cut", ["chain", "replicas"])
def test_an_iterator_is_read_as_tasks_need_it(cut: str) -> None:
    alive: dict[int, weakref.ref[Tensor]] = {}
    most = 0

    def given() -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        nonlocal most
        for step in range(99):
            inputs, targets = batch_of(step)
            alive[step] = weakref.ref(inputs["x"])
            most = max(most, sum(each() is not None for each in alive.values()))
            yield inputs, targets

    pipeline, _ = pipeline_under(cut, "stash")
    batches = given()
    losses = pipeline.segment(batches, count=12)
    assert losses == pipeline_under(cut, "stash")[0].segment([batch_of(step) for step in range(12)])
    assert (len(alive), most <= 5) == (12, True), most
    assert len(pipeline.segment(batches, count=3)) == 3
    assert pipeline.steps == 15


def test_a_stream_that_ends_early_or_changes_its_shapes_changes_nothing() -> None:
    pipeline, model = pipeline_under("chain", "stash")
    before = state_of(pipeline, model)
    with pytest.raises(InvalidInput, match="ended after 2 mini-batches, but count is 4"):
        pipeline.segment((batch_of(step) for step in range(2)), count=4)
    other = {"x": torch.randn(8, 5, 1)}, batch_of(0)[1]
    with pytest.raises(InvalidInput, match="mini-batch 2 of the segment"):
        pipeline.segment(iter([batch_of(0), batch_of(1), other]), count=3)
    with pytest.raises(InvalidInput, match="count: is 0"):
        pipeline.segment([], count=0)
    assert_equal(state_of(pipeline, model), before)
    assert pipeline.steps == 0
    flushing, _ = pipeline_under("chain", "flush")
    assert len(flushing.segment((batch_of(step) for step in range(9)), count=2)) == 2


def batch_of_size(samples: int) -> tuple[dict[str, Tensor], Tensor]:
    inputs, targets = batch_of(0)
    return {name: each[:samples] for name, each in inputs.items()}, targets[:samples]


def test_the_trace_of_a_segment() -> None:
    pipeline, _ = pipeline_under("diamond", "stash", record=True)
    pipeline.segment([batch_of(step) for step in range(3)])
    trace = pipeline.trace()
    assert trace.batch_size == 24
    spans = [(span.kind, span.stage, span.micro_batch) for span in trace.spans if span.kind in ("F", "B", "optimizer")]
    assert sorted(spans) == sorted(
        (kind, stage, number)
        for stage in range(4)
        for kind, count in (("F", 6), ("B", 6), ("optimizer", 3))
        for number in range(count)
    )
