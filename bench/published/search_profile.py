"""Where a search spends its time: the files with the largest own time, under Python's profiler."""

import cProfile
from pathlib import Path
from types import CodeType

import graphpipe as gp
from bench.case import plan_row

Shares = list[tuple[str, float]]
"""Files and their shares of all time, the largest first."""


def where_time_goes(graph: gp.Graph, model: str, devices: int, batch: int, name: str, shown: int) -> Shares:
    """Return the files in which a planner's search spends most time; what they call in other files counts there.

    The profiler makes calls of Python functions look longer than they are.

    Raises:
        AssertionError: there is no plan.
    """
    profiler = cProfile.Profile()
    row = profiler.runcall(plan_row, graph, model, devices, batch, name)
    assert row["status"] == "ok", row
    own = dict[str, float]()
    for entry in profiler.getstats():
        file = _file(entry.code)
        own[file] = own.get(file, 0.0) + entry.inlinetime
    whole = sum(own.values())
    largest = sorted(own, key=own.__getitem__, reverse=True)[:shown]
    return [(file, own[file] / whole) for file in largest]


def _file(code: CodeType | str) -> str:
    if isinstance(code, str):
        return "built-in functions"
    path = Path(code.co_filename)
    return f"{path.parent.name}/{path.stem}" if "graphpipe" in path.parts else "libraries"
