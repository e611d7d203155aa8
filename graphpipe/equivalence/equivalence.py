"""The result of a check: whether a plan trains a model as plain PyTorch does, and where it does not."""

from dataclasses import dataclass
from typing import Literal

from graphpipe.equivalence.deviation import Deviation

Level = Literal["capture", "micro-batches", "cut"]
_LEVELS = {
    "capture": "the captured model, whole and undivided, already differs",
    "micro-batches": "it is equal until the mini-batch is divided into micro-batches",
    "cut": "it is equal in one stage, and differs where the plan cuts it",
}
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Whether a plan trains a model as plain PyTorch does."""

    differences: tuple[Deviation, ...]
    """What differs: outputs and the loss, then gradients, parameters and buffers in the order of the forward. Empty if
    all is equal."""
    level: Level | None = None
    """Where it begins to differ. None if all is equal, or if plain PyTorch differs from itself."""
    first: str = ""
    """The first operator or parameter in the order of the forward that differs. Empty if there is none."""
    repeats: bool = True
    """False if two plain steps that begin alike differ, because the forward draws random numbers outside torch."""
    remedy: str = ""
    """What to do about the differences, in sentences."""
    notes: tuple[str, ...] = ()
    """What was left out of the comparison, as sentences."""
    samples: int
    """How many samples were trained."""
    micro_batches: tuple[int, ...]
    """How many micro-batches each stage had."""
    precision: Literal["double", "single"]
    """In which the steps were compared."""
    plain_seconds: float
    """Seconds that the step took in plain PyTorch."""
    check_seconds: float
    """Seconds that the whole check took."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    @property
    def where(self) -> str:
        """Where it begins to differ, as a sentence without a full stop; empty if that is not known."""
        if self.level is None:
            return ""
        return _LEVELS[self.level] + (f"; first at {self.first}" if self.first else "")

    def __str__(self) -> str:
        """Return the result in plain English."""
        counts = [*dict.fromkeys(self.micro_batches)]
        parts = f"{', '.join(map(str, counts))} micro-batch{'' if counts == [1] else 'es'} per stage"
        how = f"{self.samples} samples, {parts}, {self.precision} precision"
        if self.equal:
            return "\n".join([f"equal: the plan trains as plain PyTorch does ({how})", *self._noted])
        lines = [f"differs: the plan does not train as plain PyTorch does ({how})"]
        if self.where:
            lines.append(f"where: {self.where}")
        lines += [f"- {each.sentence}" for each in self.differences[:_SHOWN]]
        if len(self.differences) > _SHOWN:
            lines.append(f"- and {len(self.differences) - _SHOWN} more")
        return "\n".join([*lines, f"what to do: {self.remedy}", *self._noted])

    @property
    def _noted(self) -> list[str]:
        return [f"note: {each}" for each in self.notes]
