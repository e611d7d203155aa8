"""A run whose passes took other times than the plan's costs say teaches the costs that it had."""

from dataclasses import replace
from pathlib import Path

import pytest
from builders import Part, make_plan, plans
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.costs import CostTable
from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.profiler.learning.learn import learn
from graphpipe.profiler.learning.learned import largest_difference
from graphpipe.simulator.predicted_step import predict
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace


def _with_factors(plan: Plan, forward: list[float], backward: list[float]) -> Plan:
    """Return the plan on devices that take these times as long for the passes of each operator."""
    factors = {op.name: at for at, op in enumerate(plan.graph.ops)}
    rows = tuple(
        replace(
            row,
            forward=row.forward.times(forward[factors[row.op] % len(forward)]),
            input_gradient=row.input_gradient.times(backward[factors[row.op] % len(backward)]),
            weight_gradient=row.weight_gradient.times(backward[factors[row.op] % len(backward)]),
        )
        for row in plan.costs.rows
    )
    return replace(plan, costs=replace(plan.costs, rows=rows), prediction=None)


def _measured(plan: Plan, real: Plan) -> Trace:
    return replace(simulate(real), source="measured", plan_fingerprint=plan.fingerprint)


@settings(max_examples=15)
@given(
    plan=plans(quick=True).filter(lambda plan: all(stage.state != "layers" for stage in plan.stages)),
    forward=st.lists(st.floats(0.3, 3.0), min_size=1, max_size=4),
    backward=st.lists(st.floats(0.3, 3.0), min_size=1, max_size=4),
)
def test_learned_costs_predict_the_run_that_taught_them(
    plan: Plan, forward: list[float], backward: list[float]
) -> None:
    """Each stage has one operator here, so one factor for each pass of a stage says everything."""
    real = _with_factors(plan, forward, backward)
    measured = _measured(plan, real)
    learned = learn(plan, measured)
    again = simulate(replace(plan, costs=learned.costs, prediction=None))
    assert again.step_seconds == pytest.approx(measured.step_seconds, rel=1e-6)


def test_factors_are_those_of_the_passes() -> None:
    """A forward of 1 s takes 2 s, and a backward of 2 s takes 1 s: factors of 2 and 0.5. The optimizer takes twice."""
    plan = make_plan([Part(parameter_bytes=8.0), Part()], optimizer_seconds_per_parameter_byte=0.25)
    real = _with_factors(plan, [2.0, 1.0], [0.5, 1.0])
    real = replace(real, costs=replace(real.costs, optimizer_seconds_per_parameter_byte=0.5))
    learned = learn(plan, _measured(plan, real))
    found = {(each.stage, each.what): each.factor for each in learned.passes}
    assert found == pytest.approx(
        {("s0", "forward"): 2.0, ("s0", "backward"): 0.5, ("s1", "forward"): 1.0, ("s1", "backward"): 1.0}
    )
    assert learned.costs.optimizer_seconds_per_parameter_byte == pytest.approx(0.5)
    worst = largest_difference(learned.passes)
    assert worst is not None
    assert worst.stage == "s0"


def test_halves_of_a_split_backward_are_learned_each() -> None:
    """The half for the weights took three times as long, the other one what was predicted."""
    plan = make_plan([Part(), Part(), Part()], schedule="zb-h1")
    rows = tuple(replace(row, weight_gradient=row.weight_gradient.times(3.0)) for row in plan.costs.rows)
    real = replace(plan, costs=replace(plan.costs, rows=rows))
    learned = learn(plan, _measured(plan, real))
    found = {each.what: each.factor for each in learned.passes if each.stage == "s1"}
    assert found["weight half"] == pytest.approx(3.0)
    assert found["input half"] == pytest.approx(1.0)
    assert learned.costs.by_op["s1", "unit"].weight_gradient(1.0) == pytest.approx(
        3 * plan.costs.by_op["s1", "unit"].weight_gradient(1.0)
    )


def _with_gaps(plan: Plan, gap: float, overhead: float) -> tuple[Trace, float]:
    """Return a step that has a gap after each task, and more seconds in which no device does anything."""
    slower = replace(plan, costs=replace(plan.costs, task_overhead_seconds=plan.costs.task_overhead_seconds + gap))
    trace = _measured(plan, slower)
    spans = [
        replace(span, end_seconds=span.end_seconds - gap) if span.kind in ("F", "B") else span for span in trace.spans
    ]
    return replace(trace, spans=tuple(spans)), trace.step_seconds + overhead


def test_what_a_run_teaches_of_a_step_predicts_another_plan() -> None:
    """The next plan has twice as many tasks: seconds between tasks count twice there, and those of a step once.

    Half of a short step was missing from what a run had taught: 10 of 15 ms were predicted.
    """
    plan = make_plan([Part(micro_batch=2), Part(micro_batch=2)])
    step, seconds = _with_gaps(plan, gap=0.1, overhead=5.0)
    learned = learn(plan, step, seconds)
    assert learned.costs.step_overhead_seconds == pytest.approx(5.0)
    assert predict(replace(plan, costs=learned.costs)).step_seconds == pytest.approx(seconds)
    other = replace(make_plan([Part(), Part()]), costs=learned.costs)
    _, expected = _with_gaps(replace(other, costs=plan.costs), gap=0.1, overhead=5.0)
    assert predict(other).step_seconds == pytest.approx(expected)
    next_run = replace(plan, costs=learned.costs)
    again = learn(next_run, replace(step, plan_fingerprint=next_run.fingerprint), seconds)
    assert predict(replace(plan, costs=again.costs)).step_seconds == pytest.approx(seconds)  # nothing is added twice


def test_few_steps_teach_only_tasks() -> None:
    """Nothing is said of the rest of a step. What an earlier run has taught of it stays."""
    plan = make_plan([Part(), Part()])
    plan = replace(plan, costs=replace(plan.costs, step_overhead_seconds=0.5))
    learned = learn(plan, _measured(plan, plan))
    assert learned.left_of_steps == ()
    assert learned.costs.step_overhead_seconds == 0.5


def test_a_step_of_another_plan_teaches_nothing() -> None:
    """Both plans are named."""
    plan, other = make_plan([Part(), Part()]), make_plan([Part(), Part(micro_batch=2)])
    with pytest.raises(InvalidInput, match=other.fingerprint[:12]):
        learn(plan, simulate(other))


def test_costs_are_read_from_the_folder_of_a_run(tmp_path: Path) -> None:
    """A folder without them is refused with what is missing."""
    with pytest.raises(InvalidInput, match=r"costs-learned\.json: does not exist"):
        CostTable.load(tmp_path)
    plan = make_plan([Part(), Part()])
    plan.costs.save(tmp_path / "costs-learned.json")
    assert CostTable.load(tmp_path) == plan.costs
