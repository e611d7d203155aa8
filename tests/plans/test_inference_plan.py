"""A plan that does not train: its file, memory, schedule and simulated time, by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
from builders import Part, chain, make_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import towers

import graphpipe as gp
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.plans.device_memory import needed_bytes
from graphpipe.plans.verify import verify
from graphpipe.schedule import Compute
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers import forward_only
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.verify_lowered import verify_lowered
from graphpipe.simulator import predict
from graphpipe.simulator.simulate import simulate


def inference(plan: gp.Plan) -> gp.Plan:
    """Return the stages of a plan for inference."""
    plan = replace(plan, trains=False, schedule=forward_only.NAME)
    stages = zip(plan.stages, forward_only.in_flight(plan), strict=True)
    return replace(plan, stages=tuple(replace(stage, in_flight=count) for stage, count in stages))


def three() -> gp.Plan:
    """Return stages of 1, 2 and 1 seconds, with messages of half a byte (half a second)."""
    parts = [Part(parameter_bytes=10.0, saved_bytes=7.0), Part(forward=2.0), Part()]
    return inference(make_plan(parts, chain(3, 0.5), optimizer_seconds_per_parameter_byte=9.0))


def test_the_simulated_step_has_only_forwards() -> None:
    # 8 samples: 1 s, half a second to stage 1, 8 times 2 s, half a second to stage 2, 1 s.
    assert predict(three()).step_seconds == 1 + 0.5 + 16 + 0.5 + 1
    assert {span.kind for span in simulate(three()).spans} == {"F", "send", "receive"}


def test_memory_is_weights_buffers_and_the_values_in_between() -> None:
    """Stage 0 keeps 10 bytes of weights, 3 samples of half a byte to send, and the one that it computes."""
    plan = three()
    assert [stage.in_flight for stage in plan.stages] == [3, 3, 3]
    assert needed_bytes(plan) == {0: 10 + 1.5 + 0.5, 1: 1.5 + 1.5 + 0.5, 2: 1.5}
    assert predict(plan).peak_bytes == (12.0, 3.5, 1.5)
    small = replace(plan.cluster.device_types[0], memory_bytes=11.9)
    with pytest.raises(Infeasible, match="short"):
        verify(replace(plan, cluster=replace(plan.cluster, device_types=(small,))))


def test_a_replica_has_its_share_of_the_samples_in_flight() -> None:
    parts = [Part(parameter_bytes=10.0, saved_bytes=7.0, micro_batch=2, degree=2), Part(micro_batch=2)]
    plan = inference(make_plan(parts, chain(2, 0.5)))
    assert [stage.in_flight for stage in plan.stages] == [6, 6]
    # 3 samples of half a byte to send, and the one that is computed; 6 received.
    assert predict(plan).peak_bytes == (10 + 1.5 + 0.5, 10 + 1.5 + 0.5, 3)


def test_no_gradient_is_counted() -> None:
    plan = three()
    assert not plan.gradient_edges
    assert not plan.tied_gradients
    assert plan.optimizer_seconds(0) == plan.reduced_bytes(0) == 0
    assert plan.cost_model.task_seconds(("s0",), 0, 1).backward == 0


def test_the_field_is_saved_and_stays_out_of_fingerprints_of_training(tmp_path: Path) -> None:
    plan = three()
    plan.save(tmp_path / "plan.json")
    assert gp.Plan.load(tmp_path / "plan.json") == plan
    training = make_plan([Part()])
    text = (tmp_path / "plan.json").read_text()
    assert '"trains"' in text
    assert replace(training, trains=False).fingerprint != training.fingerprint


@pytest.mark.parametrize(
    ("field", "value"), [("recompute", "full"), ("state", "optimizer"), ("backward", "whole"), ("burst", 2)]
)
def test_what_only_training_has_is_refused(field: str, value: object) -> None:
    plan = three()
    first = replace(plan.stages[0], **{field: value})  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidInput, match=f"stage 's0': {field} is .* does not train"):
        verify(replace(plan, stages=(first, *plan.stages[1:])))


def test_schedules_of_the_other_purpose_are_refused() -> None:
    with pytest.raises(InvalidInput, match="'1f1b' has backwards, but the plan does not train"):
        build_schedule(replace(three(), schedule="1f1b"))
    with pytest.raises(InvalidInput, match="no backwards, but the plan trains"):
        build_schedule(replace(three(), trains=True))


def test_a_slow_consumer_holds_its_producer_back() -> None:
    """Stage 0 begins sample 3 when the message of sample 0 has arrived, and is three samples ahead of stage 1."""
    plan = three()
    order = lower(plan, build_schedule(plan))
    tasks = [str(action.task) for _, action in order.order if isinstance(action, Compute)]
    for sample in range(3, 8):
        assert tasks.index(f"F0.{sample}") > tasks.index(f"F1.{sample - 3}")


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_random_graphs_are_verified_lowered_and_simulated(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    parts = [
        Part(
            micro_batch=data.draw(st.sampled_from([1, 2, 4])),
            forward=data.draw(st.sampled_from([0.5, 2.0])),
            parameter_bytes=data.draw(st.sampled_from([0.0, 5.0])),
            devices=(data.draw(st.integers(0, 3)),),
        )
        for _ in range(count)
    ]
    edges = [(s, t, 1.0) for t in range(count) for s in range(t) if data.draw(st.booleans())]
    plan = inference(make_plan(parts, edges, batch_size=8, device_count=4))
    verify(plan)
    schedule = build_schedule(plan)
    verify_lowered(plan, schedule, lower(plan, schedule))
    busy = [0.0] * 4
    for part, stage in zip(parts, plan.stages, strict=True):
        busy[stage.devices[0]] += 8 * part.forward
    found = predict(plan)
    assert found.step_seconds >= max(busy) - 1e-9
    for device, needed in needed_bytes(plan).items():
        assert found.peak_bytes[device] <= needed + 1e-9


def test_branches_run_side_by_side_for_latency() -> None:
    """Two branches of equal length on two devices take half of the time that one device takes, plus messages."""
    problem = towers([4, 4], 2, 8)
    own, chains = (
        gp.plan(
            problem.graph,
            problem.costs,
            problem.cluster,
            batch_size=8,
            micro_batch=8,
            planner=planner,
            inference=True,
            objective="latency",
        )
        for planner in ("graphpipe", "edgepipe")
    )
    assert own.prediction is not None
    assert chains.prediction is not None
    assert own.prediction.step_seconds < 0.7 * chains.prediction.step_seconds


def test_inference_excludes_what_it_does_not_have() -> None:
    problem = towers([2], 2, 8)
    values = problem.graph, problem.costs, problem.cluster
    with pytest.raises(InvalidInput, match="schedule: is '1f1b', but plans for inference do not follow it"):
        gp.plan(*values, batch_size=8, inference=True, schedule="1f1b")
    with pytest.raises(InvalidInput, match=r"plans only training\. Choose graphpipe or edgepipe"):
        gp.plan(*values, batch_size=8, inference=True, planner="piper")
    with pytest.raises(InvalidInput, match="Of inference it is throughput or latency"):
        gp.plan(*values, batch_size=8, inference=True, objective="step")
