"""The finalists of a search: drafts kept by the objective, and the nearest miss where nothing fits in memory."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from graphpipe.planners.problem.options import Objective
from graphpipe.planners.search.partition_estimate import Draft

FINALISTS = 12
_CLOSE = 1.15
"""Candidates within this factor of the best estimate are worth keeping."""


@dataclass(slots=True)
class Candidates:
    """The best drafts so far, by the objective, and the nearest miss where none fits in memory."""

    objective: Objective | Literal["split"]
    """`split`: the step time under schedules that split the backward."""
    drafts: list[Draft] = field(default_factory=list[Draft])
    shortfall: float = np.inf
    missing: str = ""

    @property
    def close(self) -> float:
        """Seconds from which on a plan is not worth keeping."""
        return _CLOSE * self.score(self.drafts[0]) if self.drafts else np.inf

    @property
    def ceiling(self) -> float:
        """Seconds from which on a plan cannot become a finalist."""
        return min(self.close, self.score(self.drafts[-1])) if len(self.drafts) == FINALISTS else self.close

    def score(self, draft: Draft) -> float:
        """Return the seconds that the objective counts."""
        match self.objective:
            case "step":
                return draft.step_seconds
            case "bottleneck":
                return draft.bottleneck_seconds
            case "split":
                return draft.split_seconds

    def hopeless(self, seconds: float) -> bool:
        """Return whether no plan that takes at least this long can become a finalist."""
        return seconds > self.ceiling

    def offer(self, draft: Draft) -> bool:
        """Take a draft, unless it is too slow or known; return whether it fits in memory."""
        stage = int(np.argmin(draft.spare_bytes))
        if draft.spare_bytes[stage] < 0:
            self._miss(draft, stage)
            return False
        known = any(draft.parts == other.parts for other in self.drafts)
        if not self.hopeless(self.score(draft)) and not known:
            # Of equals the one that leaves more memory (section 5).
            by = sorted([*self.drafts, draft], key=lambda each: (self.score(each), -min(each.spare_bytes)))
            self.drafts = by[:FINALISTS]
        return True

    def _miss(self, draft: Draft, stage: int) -> None:
        ops = draft.parts[stage].ops
        names = ", ".join(ops[:3]) + (f", ... ({len(ops)} operators)" if len(ops) > 3 else "")
        self.note(-draft.spare_bytes[stage], f"stage 's{stage}' ({names})")

    def note(self, shortfall: float, where: str) -> None:
        """Remember the nearest miss: bytes lacking, and where."""
        if shortfall < self.shortfall:
            self.shortfall, self.missing = shortfall, where
