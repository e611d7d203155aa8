"""The candidates of a search: its best estimates by the objective, and the nearest miss if nothing fits in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from graphpipe.planners.problem.limits import KEPT
from graphpipe.planners.problem.options import Objective
from graphpipe.planners.problem.partition import Part
from graphpipe.planners.search.partition_estimate import PartitionEstimate, PartitionEstimator


@dataclass(slots=True)
class Candidates:
    """The best estimates so far, by the objective, and the nearest miss if nothing fits in memory."""

    objective: Objective | Literal["split"]
    """What the best candidate is ranked by. `split`: the step time under schedules that split the backward."""
    most: int
    """Candidates that are kept."""
    estimates: list[PartitionEstimate] = field(default_factory=list[PartitionEstimate])
    missed: float = np.inf
    """The best score of a partition that does not fit."""
    shortfall: float = np.inf
    missing: str = ""

    @property
    def close(self) -> float:
        """Seconds above which a plan is not worth keeping."""
        return KEPT * self.score(self.estimates[0]) if self.estimates else np.inf

    @property
    def ceiling(self) -> float:
        """Seconds above which a plan cannot become a candidate."""
        return min(self.close, self.score(self.estimates[-1])) if len(self.estimates) == self.most else self.close

    def score(self, estimate: PartitionEstimate) -> float:
        """Return the estimated seconds that the objective minimises."""
        match self.objective:
            case "step":
                return estimate.step_seconds
            case "bottleneck":
                return estimate.bottleneck_seconds
            case "split":
                return estimate.split_seconds

    def hopeless(self, seconds: float) -> bool:
        """Return whether a plan that takes this long or longer cannot become a candidate."""
        return seconds > self.ceiling

    def offer(self, estimate: PartitionEstimate) -> bool:
        """Keep an estimate unless it is too slow or known; return whether it fits in memory."""
        stage = int(np.argmin(estimate.spare_bytes))
        if estimate.spare_bytes[stage] < 0:
            self._miss(estimate, stage)
            return False
        known = any(estimate.parts == other.parts for other in self.estimates)
        if not self.hopeless(self.score(estimate)) and not known:
            # Of equals, prefer the one that leaves more memory (section 5).
            by = sorted([*self.estimates, estimate], key=lambda known: (self.score(known), -min(known.spare_bytes)))
            self.estimates = by[: self.most]
        return True

    def _miss(self, estimate: PartitionEstimate, stage: int) -> None:
        self.missed = min(self.missed, self.score(estimate))
        ops = estimate.parts[stage].ops
        names = ", ".join(ops[:3]) + (f", ... ({len(ops)} operators)" if len(ops) > 3 else "")
        self.note(-estimate.spare_bytes[stage], f"stage 's{stage}' ({names})")

    def note(self, shortfall: float, where: str) -> None:
        """Keep the nearest miss: the bytes that are missing, and where."""
        if shortfall < self.shortfall:
            self.shortfall, self.missing = shortfall, where


@dataclass(frozen=True, slots=True)
class Ranking:
    """Estimates partitions for one kind of pipeline, and keeps the best."""

    estimator: PartitionEstimator
    best: Candidates
    split: Candidates | None = None
    """The best candidates if the schedule may split the backward, which makes more stages fill and drain faster."""
    seen: dict[tuple[Part, ...], tuple[PartitionEstimate, bool]] = field(
        default_factory=dict[tuple[Part, ...], tuple[PartitionEstimate, bool]]
    )
    """Partitions already estimated, and whether they fit in memory; several forms and targets give the same one."""
    best_of_size: dict[int, float] = field(default_factory=dict[int, float])
    """The best score of a partition that fits in memory, by micro-batch size."""
    missed_of_size: dict[int, float] = field(default_factory=dict[int, float])
    """The best score of a partition that does not fit in memory, by micro-batch size."""

    def offer(self, parts: Sequence[Part]) -> tuple[PartitionEstimate, bool]:
        """Estimate a partition; return its estimate and whether it fits in memory."""
        key = tuple(parts)
        if key not in self.seen:
            estimate = self.estimator.estimate(key)
            self.seen[key] = estimate, (fits := self.best.offer(estimate))
            best, size = (self.best_of_size if fits else self.missed_of_size), key[0].micro_batch
            best[size] = min(score := self.best.score(estimate), best.get(size, score))
            if self.split is not None:
                self.split.offer(estimate)
        return self.seen[key]

    @property
    def estimates(self) -> list[PartitionEstimate]:
        """The best estimates, each once."""
        others = self.split.estimates if self.split is not None else []
        return [*self.best.estimates, *(estimate for estimate in others if estimate not in self.best.estimates)]
