"""What a report is about: a plan, what was predicted, what happened."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.report.tables.comparison import Outcome
from graphpipe.trace import Trace

if TYPE_CHECKING:
    from graphpipe.training.run_folder.train_result import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """All that a report may show; each part has its panel where it is there.

    Raises:
        InvalidInput: nothing is there, or a trace is of another plan than the plan, or than the other trace.
    """

    title: str
    plan: Plan | None = None
    predicted: Trace | None = None
    measured: Trace | None = None
    """Measured or emulated."""
    steps: "tuple[Step, ...]" = ()
    """The optimizer steps of a run."""
    planners: tuple[Outcome, ...] = ()
    """What other planners found for the same problem."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The resolved configuration of a run, as its config.json has it."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the programs involved."""

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

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The predicted trace, then the measured one, as far as they are there."""
        return tuple(trace for _, trace in self.named_traces)

    @property
    def named_traces(self) -> tuple[tuple[str, Trace], ...]:
        """As `traces`, with what an error calls them."""
        both = (("the predicted trace", self.predicted), ("the measured trace", self.measured))
        return tuple((name, trace) for name, trace in both if trace is not None)

    @property
    def step_seconds(self) -> float:
        """Seconds of the longest step; 0 where nothing took time, which no timeline can show."""
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
        """Return the name of a stage, or `stage 3` where there is no plan to tell it."""
        return self.plan.stages[stage].name if self.plan else f"stage {stage}"
