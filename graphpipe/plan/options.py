"""What a caller may ask of any planner."""

from collections.abc import Callable
from dataclasses import dataclass

from graphpipe.plan.bounds import estimated_step_seconds
from graphpipe.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options common to all planners; a planner ignores what does not concern it."""

    evaluate: Callable[[Plan], float] = estimated_step_seconds
    """Seconds of one step of a plan; the last candidates are ranked by it."""
    micro_batch: int | None = None
    """Only this micro-batch size; None sweeps."""
    mixed_micro_batches: bool = False
    """Let every stage have its own micro-batch size, with kFkB (GraphPipe, section 6)."""
