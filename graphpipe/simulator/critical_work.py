"""The critical path of a simulated step: the work that must become shorter for the step to become shorter."""

from graphpipe.plans import Plan
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.simulator.activities import Activities, SimulatedWork
from graphpipe.simulator.engine import Interval
from graphpipe.simulator.simulate import intervals_of


def critical_work(plan: Plan) -> list[tuple[SimulatedWork, Interval]]:
    """Return one chain of work without a gap, from the start of a step to its end, in order of time.

    From the work that ends last, the chain goes back to what this work waited for until the end, and so on. If it
    waited for several at once, the one that was added first is followed. Every sample has the expected load.

    Raises:
        InvalidInput: the plan's schedule deadlocks or is unknown.
    """
    activities = Activities(plan)
    activities.add_all(lower(plan, build_schedule(plan)))
    found, intervals = activities.found, intervals_of(activities)
    at: int | None = max(range(len(found)), key=lambda number: intervals[number].end)
    path: list[int] = []
    while at is not None:
        path.append(at)
        at = max(found[at].needs, key=lambda number: intervals[number].end, default=None)
    return [(activities.what[number], intervals[number]) for number in reversed(path) if found[number].seconds]
