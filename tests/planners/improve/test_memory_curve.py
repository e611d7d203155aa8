"""The curve of memory against step time."""

from itertools import pairwise

from problems import towers

from graphpipe.planners.improve.memory_curve import memory_curve
from graphpipe.planners.problem.options import Options
from graphpipe.planners.search.search import search
from graphpipe.plans.verify import verify
from graphpipe.report.content.memory_choices import choice_lines, memory_choices
from graphpipe.simulator import step_seconds


def test_less_memory_takes_longer_and_every_point_is_sound():
    problem = towers([4], 2, 16, saved_bytes=1e8, layer=(0.0, 5e-3))
    plan = search(problem, Options(evaluate=step_seconds), planner="graphpipe", chains=(True,))
    points = memory_curve(plan, step_seconds)
    assert len(points) >= 3
    assert memory_choices(points[0].plan) is None
    for more, less in pairwise(points):
        assert more.memory_bytes > less.memory_bytes
        assert more.step_seconds < less.step_seconds
        verify(less.plan)
    last = memory_choices(points[-1].plan)
    assert last is not None
    assert last.step_seconds == points[-1].step_seconds > last.keeping_seconds == step_seconds(points[0].plan)
    *stages, step = choice_lines(last)
    assert all(": keeps " in line and (" recomputes " in line or " offloads " in line) for line in stages)
    assert step.startswith("with the memory to keep everything, the step would be ")
