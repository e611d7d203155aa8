"""The subject of a report: a plan, its prediction, and the run of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.report.content.summary import Outcome
from graphpipe.trace import COMPUTING, Trace

if TYPE_CHECKING:
    from graphpipe.training.run_folder.evaluations_log import EvaluationMetrics
    from graphpipe.training.run_folder.metrics_log import StepMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Everything that a report can show. Every part is optional, and a panel is left out if its part is missing.

    Raises:
        InvalidInput: there is neither a plan nor a trace, or plan and traces do not belong to one plan, or a trace
            has a task on a device that does not run its stage.
    """

    title: str
    plan: Plan | None = None
    predicted: Trace | None = None
    measured: Trace | None = None
    """The trace of a run (measured) or of a rehearsal (emulated)."""
    steps: "tuple[StepMetrics, ...]" = ()
    """The optimizer steps of a run."""
    evaluations: "tuple[EvaluationMetrics, ...]" = ()
    """The evaluations of a run's held-out samples."""
    planners: tuple[Outcome, ...] = ()
    """The results of several planners for the same problem."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The resolved configuration of a run, from its config.json."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Versions of Python, PyTorch, GraphPipe and others."""

    def __post_init__(self) -> None:
        hashes = {name: trace.plan_fingerprint for name, trace in self.named_traces}
        if self.plan is not None:
            hashes["the plan"] = self.plan.fingerprint
        if len(set(hashes.values())) > 1:
            pairs = ", ".join(f"{name} has {value[:12]}" for name, value in hashes.items())
            remedy = "Give a plan and the traces of that plan."
            raise InvalidInput(f"plan and traces do not belong together: by plan hash, {pairs}", remedy=remedy)
        if not hashes:
            raise InvalidInput("neither a plan nor a trace is given")
        if self.plan is not None:
            for name, trace in self.named_traces:
                _check_devices(self.plan, trace, name)

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The predicted trace, then the measured one. Either may be missing."""
        return tuple(trace for _, trace in self.named_traces)

    @property
    def named_traces(self) -> tuple[tuple[str, Trace], ...]:
        """The traces, each with its name in error messages."""
        both = (("the predicted trace", self.predicted), ("the measured trace", self.measured))
        return tuple((name, trace) for name, trace in both if trace is not None)

    @property
    def step_seconds(self) -> float:
        """Seconds of the longest step. 0 if nothing took time: then there is no timeline."""
        return max((trace.step_seconds for trace in self.traces), default=0.0)

    @property
    def plan_hash(self) -> str:
        """SHA-256 of the plan."""
        return self.plan.fingerprint if self.plan else self.traces[0].plan_fingerprint

    @property
    def batch_size(self) -> int:
        """Samples of a mini-batch."""
        return self.plan.batch_size if self.plan else self.traces[0].batch_size

    def stage_name(self, stage: int) -> str:
        """Return the name of a stage, or `stage 3` if there is no plan."""
        return self.plan.stages[stage].name if self.plan else f"stage {stage}"


def _check_devices(plan: Plan, trace: Trace, name: str) -> None:
    devices = [frozenset(stage.devices) for stage in plan.stages]
    for span in trace.spans:
        if span.stage >= len(devices):
            what = f"has a span of stage {span.stage}, but the plan has {len(devices)} stages"
            raise InvalidInput(what, where=name, remedy=_REMEDY)
        if span.kind in COMPUTING and span.device not in devices[span.stage]:
            stage = plan.stages[span.stage]
            what = f"has a task of stage '{stage.name}' on device {span.device}, but its devices are {stage.devices}"
            raise InvalidInput(what, where=name, remedy=_REMEDY)


_REMEDY = "The file was changed by hand: predict or run the plan again."
