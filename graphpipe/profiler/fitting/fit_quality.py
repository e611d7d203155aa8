"""How well the curves of a profile describe what was measured, and what to do if they do not."""

from collections.abc import Sequence
from dataclasses import dataclass

from graphpipe.costs import CostTable
from graphpipe.costs.op_cost import OpCost

TOLERATED = 0.2
"""The largest error of a curve that needs no remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitQuality:
    """The curve that misses its measurements by most."""

    op: str
    error: float
    """Error of the curve at its worst number of samples, as a share of the measured seconds."""
    share: float
    """Share of the operator in the seconds of all operators, at the largest number of samples."""
    samples: tuple[int, ...]
    """Numbers of samples at which the operators were measured, ascending."""

    @property
    def sentence(self) -> str:
        """What to tell the user, with a remedy if there is need for one."""
        text = f"largest error of a fitted curve {self.error:.1%}"
        if self.error <= TOLERATED:
            return text
        fewer = self.samples[-2:] if len(self.samples) > 2 else self.samples[-1:]
        return (
            f"{text} (operator '{self.op}', {self.share:.1%} of all seconds): its times are not on a convex curve. "
            f"Profile again at the micro-batch sizes that you will use, such as --samples {','.join(map(str, fewer))}"
        )


def fit_quality(costs: CostTable, samples: Sequence[int]) -> FitQuality | None:
    """Return the quality of a profile that measured these numbers of samples; None if nothing was measured."""
    measured = [row for row in costs.rows if row.error is not None]
    if not measured:
        return None
    sizes = tuple(sorted(set(samples)))
    total = sum(_seconds(row, sizes[-1]) for row in costs.rows)
    worst = max(measured, key=lambda row: row.error or 0.0)
    share = _seconds(worst, sizes[-1]) / total if total else 0.0
    return FitQuality(op=worst.op, error=worst.error or 0.0, share=share, samples=sizes)


def _seconds(row: OpCost, samples: int) -> float:
    return row.forward(samples) + row.input_gradient(samples) + row.weight_gradient(samples)
