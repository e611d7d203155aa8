"""What a run tells about costs, pass by pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from graphpipe.costs import CostTable
from graphpipe.plans import Plan
from graphpipe.trace import Trace

Pass = Literal["forward", "backward", "input half", "weight half"]
"""`backward` is a whole one; the halves are those of a split one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPass:
    """One pass of a stage's operators on one type of device, for one micro-batch."""

    stage: str
    ops: tuple[str, ...]
    device_type: str
    what: Pass
    predicted_seconds: float
    """By the costs of the plan, without the runtime's overhead and without what a backward recomputes."""
    measured_seconds: float
    """The median of the run's, without the same."""

    @property
    def factor(self) -> float:
        """How many times as long as predicted."""
        return self.measured_seconds / self.predicted_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A plan that was run, and how long it took."""

    plan: Plan
    step: Trace
    """A typical step."""
    seconds: float | None = None
    """The median of all steps, with what ranks do before a step is recorded, such as to read a mini-batch. None teaches
    nothing of what a step takes besides its tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCosts:
    """Costs, corrected by the spans of a run."""

    costs: CostTable
    passes: tuple[LearnedPass, ...]
    """What was corrected, in the order of the plan's stages."""
    left_of_steps: tuple[float, ...] = ()
    """Seconds that steps took besides what these costs say of tasks, messages and updates, by run. Their mean is
    `costs.step_overhead_seconds`. Empty if there were too few steps to tell."""


def largest_difference(passes: Sequence[LearnedPass]) -> LearnedPass | None:
    """Return the pass that was predicted worst, by the ratio of both times; None without passes."""
    return max(passes, key=lambda each: max(each.factor, 1 / each.factor), default=None)
