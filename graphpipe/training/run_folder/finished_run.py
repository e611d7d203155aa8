"""A run that has ended: its folder, its last plan and its result."""

from dataclasses import dataclass

from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_json
from graphpipe.plans import Plan
from graphpipe.profiler.learning.learn import learn
from graphpipe.profiler.learning.learned import LearnedCosts
from graphpipe.trace import Trace, save_chrome
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.run_folder.train_result import TrainResult

LEAST_STEPS = 20
"""Fewer steps do not tell what a step takes besides its tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """What `graphpipe.train` returns."""

    folder: RunFolder
    """`folder.weights`, `folder.metrics_log` and so on are the paths of its files."""
    plan: Plan
    """The plan that was run, with its prediction. For an elastic run, the last plan."""
    result: TrainResult
    learned: LearnedCosts | None = None
    """The corrected costs (`folder.learned_costs`); None if the run tells nothing."""
    rank: int = 0
    """The rank of this process. It is only other than 0 under torchrun."""


def finish(folder: RunFolder, plan: Plan) -> FinishedRun:
    """Write both steps for ui.perfetto.dev and the corrected costs, and return what rank 0 has written.

    The costs of a plan that splits operators are of the graph with their parts, which no other plan starts from. So
    they are not written. Nor are those of a training of one step, in which stages are checked.

    Raises:
        InvalidInput: a file of the run cannot be read.
    """
    traces = [Trace.load(path) for path in (folder.predicted_trace, folder.measured_trace) if path.exists()]
    save_chrome(folder.chrome_trace, traces)
    measured = traces[-1] if traces and traces[-1].source == "measured" else None
    result = from_body(TrainResult, read_json(folder.metrics), str(folder.metrics))
    learned = None
    if measured and measured.plan_fingerprint == plan.fingerprint and result.steps > 1 and not _has_parts(plan):
        learned = learn(plan, measured, _whole_step(result))
        learned.costs.save(folder.learned_costs)
    return FinishedRun(folder=folder, plan=plan, result=result, learned=learned)


def _whole_step(result: TrainResult) -> float | None:
    """Return the median seconds of a step; None if a few steps or several plans do not tell it."""
    return result.step_seconds_measured if result.steps >= LEAST_STEPS and not result.recoveries else None


def _has_parts(plan: Plan) -> bool:
    return plan.graph.origin is not None and bool(plan.graph.origin.split_ops)
