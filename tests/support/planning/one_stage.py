"""A planner from outside the package, and its installation by an entry point."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from graphpipe.planners import registry
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.planners.problem.planner import Planner
from graphpipe.plans import Plan


def plan_one_stage(problem: Problem, options: Options) -> Plan:
    """Return the plan of one stage on one device."""
    part = Part(problem.graph.order, 1, options.micro_batch or problem.batch_size)
    return assemble(problem, [part], planner="one-stage")


ONE_STAGE = Planner(name="one-stage", plan=plan_one_stage, pipeline="chain")


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, entry_point: str = "one-stage = one_stage:ONE_STAGE"
) -> None:
    """Put a package with this entry point on the path, as `pip install` does."""
    info = folder / "my_planners-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-planners\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[graphpipe.planners]\n{entry_point}\n")
    monkeypatch.syspath_prepend(folder)


@contextmanager
def planners_restored() -> Iterator[Mapping[str, Planner]]:
    """Yield the registered planners, and restore them at the end of the block."""
    with registry.PLANNERS.restored() as known:
        yield known
