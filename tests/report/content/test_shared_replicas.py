"""What is said of a plan whose devices share replicas."""

from dataclasses import replace

import pytest
from shared_replicas import chain, layer, problem, shards

from graphpipe.planners.lower_bound.lower_bound import plans_of_gap
from graphpipe.planning.by_hand import HandPlan, HandStage, plan_by_hand
from graphpipe.plans import Plan
from graphpipe.report.content.phase_memory import phase_memory
from graphpipe.report.content.wording import gap_words
from graphpipe.report.figures.memory_figure import stage_bytes
from graphpipe.report.figures.stage_boxes import stage_lines
from graphpipe.report.tables.plan_table import plan_table
from graphpipe.report.tables.shared_work_table import shared_work_table
from graphpipe.simulator import predict


@pytest.fixture
def plan() -> Plan:
    graph = chain(layer("a", shards()), layer("b", None))
    stages = (
        HandStage(ops=("a",), devices=(0, 1, 2, 3), tensor=2, micro_batch=2),
        HandStage(ops=("b",), devices=(4,), micro_batch=1),
    )
    found = plan_by_hand(problem(graph, 8, 4), HandPlan(stages=stages))
    return replace(found, prediction=predict(found))


def test_the_table_has_a_column_only_where_devices_share_replicas(plan: Plan) -> None:
    assert plan.prediction is not None
    shown = plan_table(plan, plan.prediction)
    assert [column.heading for column in shown.columns][-1] == "tensor"
    assert [row[-1] for row in shown.rows] == ["2", "-"]
    assert [row[3] for row in shown.rows] == ["2 x 1", "1"]
    alone = replace(plan, stages=(replace(plan.stages[0], tensor=1, micro_batch=4, in_flight=4), plan.stages[1]))
    assert "tensor" not in [column.heading for column in plan_table(alone, plan.prediction).columns]


def test_what_devices_gain_is_shown(plan: Plan) -> None:
    shown = shared_work_table(plan)
    # Alone 1 + 10 s forward and as much for the gradient of the weights. Shared 1 + 6 s, twice, and sums of 22 s.
    assert shown.rows == [["s0", "2", "22.0 s", "36.0 s", "0%", "61%"]]


def test_inference_has_no_sums_of_a_backward() -> None:
    """152 % of a stage's time were sums: those of the backward counted, which does not happen."""
    graph = chain(layer("b", None), layer("a", shards()))
    stages = (HandStage(ops=("b", "a"), devices=(0, 1), tensor=2, micro_batch=1),)
    found = plan_by_hand(replace(problem(graph, 2, 4), trains=False), HandPlan(stages=stages, schedule="forward-only"))
    # The shared operator takes 7 s and sums of 22 s, the other one 11 s.
    assert shared_work_table(found).rows == [["s0", "2", "22.0 s", "40.0 s", "28%", "55%"]]


def test_the_box_of_a_stage_says_so(plan: Plan) -> None:
    assert stage_lines(plan, 0)[-2:] == ["4 devices, micro 2 × 1", "2 devices per replica"]


def test_bytes_are_those_of_one_device(plan: Plan) -> None:
    bar = stage_bytes(plan, 0)
    assert (bar.weights, bar.gradients, bar.optimizer) == (60, 60, 120)
    assert phase_memory(plan)[0].training == 240 + plan.stages[0].in_flight / 2 * 15


def test_the_bound_does_not_cover_shared_replicas(plan: Plan) -> None:
    assert plans_of_gap(plan).endswith("and one device for each replica")
    assert gap_words(-12.34) == "12.3 % below"
    assert gap_words(1.0) == "at most 1.0 % above"
