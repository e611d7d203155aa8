"""A run that has ended: its folder, its last plan and its result."""

from dataclasses import dataclass

from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_json
from graphpipe.plans import Plan
from graphpipe.trace import Trace, save_chrome
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.run_folder.train_result import TrainResult


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """What `graphpipe.train` returns."""

    folder: RunFolder
    """`folder.weights`, `folder.metrics_log` and so on are the paths of its files."""
    plan: Plan
    """The plan that was run, with its prediction. For an elastic run, the last plan."""
    result: TrainResult
    rank: int = 0
    """The rank of this process. It is only other than 0 under torchrun."""


def finish(folder: RunFolder, plan: Plan) -> FinishedRun:
    """Write the predicted and the measured step for ui.perfetto.dev, and return what rank 0 has written.

    Raises:
        InvalidInput: a file of the run cannot be read.
    """
    traces = [Trace.load(path) for path in (folder.predicted_trace, folder.measured_trace) if path.exists()]
    save_chrome(folder.chrome_trace, traces)
    result = from_body(TrainResult, read_json(folder.metrics), str(folder.metrics))
    return FinishedRun(folder=folder, plan=plan, result=result)
