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
