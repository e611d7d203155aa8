"""The costs of one operator on one device type: seconds and temporary bytes, as functions of the samples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import without_empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Seconds (for temporaries, bytes) of n >= 1 samples: the largest of the lines `fixed + slope * n`.

    One line is a kernel whose efficiency saturates, where half-peak work is the fixed part. Two lines are a roofline.
    A line may have a negative fixed part if another one is above it there. Without lines the value is 0.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    lines: tuple[tuple[float, float], ...] = ()

    def times(self, factor: float) -> "Curve":
        """Return the curve of `factor` times these values."""
        return Curve(lines=tuple((fixed * factor, slope * factor) for fixed, slope in self.lines))

    def __call__(self, samples: float) -> float:
        """Return the value for `samples` samples; 0 for 0 samples."""
        return max((fixed + slope * samples for fixed, slope in self.lines), default=0.0) if samples else 0.0


@dataclass(frozen=True, slots=True)
class Curves:
    """Many curves, to be evaluated at once."""

    fixed: NDArray[np.float64]
    """Values at 0 samples, by curve and line. Shorter curves have lines that are 0, which no value is below."""
    slopes: NDArray[np.float64]

    @staticmethod
    def of(curves: Sequence[Curve]) -> "Curves":
        """Return these curves."""
        longest = max((len(curve.lines) for curve in curves), default=0)
        lines = [curve.lines + ((0.0, 0.0),) * (max(1, longest) - len(curve.lines)) for curve in curves]
        table = np.array(lines, dtype=np.float64).reshape(len(curves), -1, 2)
        return Curves(table[:, :, 0], table[:, :, 1])

    def __call__(self, samples: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the value of each curve for its own number of samples; the fixed part for 0 samples."""
        return (self.fixed + self.slopes * samples[:, None]).max(axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Temporaries:
    """Bytes that one operator holds only while it runs, and that the loss after it keeps."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    forward: Curve
    """Peak bytes of the forward beyond what remains at its end, which is the outputs and what the backward reads."""
    backward: Curve
    """Peak bytes of the backward beyond what was held at its start: gradients of values, and gradients of parameters
    before they are accumulated. What the backward frees meanwhile is subtracted. Gradients that arrive do not count."""
    loss_bytes_per_sample: float = 0.0
    """Bytes that the loss function keeps for the backward, if the operator computes the model's result."""
    input_half: Curve | None = None
    """As `backward`, for the first half of a split backward. None: not measured, so each half holds what `backward`
    says."""
    weight_half: Curve | None = None
    """The same for the second half."""
    held_gradients: Curve | None = None
    """Bytes of arriving gradients that are held until the first half has run at all operators, though the second half
    needs only their shapes, as of compiled regions. None: there are none."""

    @model_serializer(mode="wrap")
    def _body(self, body_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Files of costs without them are what they were before these were measured.
        return without_empty(body_of(self), "input_half", "weight_half", "held_gradients")

    def times(self, factor: float) -> "Temporaries":
        """Return `factor` times these bytes, and what the loss keeps as it is."""
        return replace(
            self,
            forward=self.forward.times(factor),
            backward=self.backward.times(factor),
            input_half=self.input_half and self.input_half.times(factor),
            weight_half=self.weight_half and self.weight_half.times(factor),
            held_gradients=self.held_gradients and self.held_gradients.times(factor),
        )

    @property
    def halves(self) -> tuple[Curve, Curve]:
        """Those of the two halves of a split backward."""
        return self.input_half or self.backward, self.weight_half or self.backward


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBytes:
    """Bytes that one operator keeps between two of its tasks, where they were measured.

    They stand in place of those that the graph counts. What several operators save counts once, for the one that made
    it. What the loss function keeps is beside them.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    per_sample: float
    per_forward: float = 0.0
    """However many samples it has."""

    @property
    def curve(self) -> Curve:
        """These bytes as a function of the samples."""
        return Curve(lines=((self.per_forward, self.per_sample),))

    def times(self, factor: float) -> "SavedBytes":
        """Return `factor` times these bytes."""
        return SavedBytes(per_sample=self.per_sample * factor, per_forward=self.per_forward * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """Seconds of the two halves of a backward, as they run apart from each other.

    The second half walks through the graph once more, and starts autograd for each operation that has parameters.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    input: Curve
    """For the gradients of the values."""
    weight: Curve
    """For those of the parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Costs of one operator on one device type."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    op: str
    device_type: str
    forward: Curve
    input_gradient: Curve
    weight_gradient: Curve
    source: Literal["analytic", "profiled", "imported"]
    """Origin of the costs. Analytic: from FLOPs and bytes. Profiled: measured. Imported: came with the graph."""
    error: float | None = None
    """Largest relative error of a profiled curve on its measurements (0.05 is 5 %)."""
    halves: Halves | None = None
    """Seconds of a backward in two halves, if they were measured. None: each half takes what its gradient takes."""
    measured_samples: tuple[int, int] | None = None
    """The fewest and the most samples of the measurements of a profiled operator."""
    temporaries: Temporaries | None = None
    """Bytes that a profiled operator holds only while it runs; None if they were not measured."""
    saved: SavedBytes | None = None
    """What it keeps for its backward, if that was measured; None: what the graph says."""
    between_halves: SavedBytes | None = None
    """What it keeps between the two halves of a split backward, if that was measured: the part of `saved` that the
    gradients of its parameters, and of its readers' parameters, need, and the gradients that they wait with. None: it
    is estimated (see `OpBytes.between_halves_of`)."""
    ranks: int | None = None
    """Devices that share the operator, if these are the costs of each of them, without their sums. None: of one device
    that computes all of it."""
    shared: tuple["OpCost", ...] = ()
    """The costs of each of several devices that share the operator, by ascending `ranks`, as far as measured."""

    @model_serializer(mode="wrap")
    def _body(self, body_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Costs without them have the body, and so the fingerprint, that they had before these were measured.
        return without_empty(body_of(self), "halves", "measured_samples", "saved", "between_halves", "ranks", "shared")

    @property
    def input_half(self) -> Curve:
        """The half of a split backward for the gradients of the values; never less than these take in one pass."""
        return _at_least(self.input_gradient, self.halves.input if self.halves else None)

    @property
    def weight_half(self) -> Curve:
        """The half of a split backward for the gradients of the parameters."""
        return _at_least(self.weight_gradient, self.halves.weight if self.halves else None)

    def times(self, factor: float) -> "OpCost":
        """Return the costs of an operator that takes `factor` times as long."""
        return replace(
            self,
            forward=self.forward.times(factor),
            input_gradient=self.input_gradient.times(factor),
            weight_gradient=self.weight_gradient.times(factor),
            halves=self.halves
            and Halves(input=self.halves.input.times(factor), weight=self.halves.weight.times(factor)),
            shared=tuple(each.times(factor) for each in self.shared),
        )

    def of_ranks(self, ranks: int) -> "OpCost":
        """Return the measured costs of as many of these devices as divide `ranks`, at most; else those of one."""
        return next((each for each in reversed(self.shared) if ranks % (each.ranks or 1) == 0), self)

    def check(self) -> None:
        """Check that no cost is negative or infinite, and that devices that share the operator are 2 or more.

        Raises:
            InvalidInput: names the curve and its values.
        """
        degrees = [each.ranks or 1 for each in self.shared]
        if any(each < 2 for each in degrees) or degrees != sorted({*degrees}):
            what = f"are of {degrees} devices, must be of 2 or more each, ascending"
            raise InvalidInput(what, where=f"cost of op {self.op} on {self.device_type}, shared")
        for each in self.shared:
            each.check()
        held = self.temporaries or Temporaries(forward=Curve(), backward=Curve())
        curves = {
            "forward": self.forward,
            "input_gradient": self.input_gradient,
            "weight_gradient": self.weight_gradient,
            "halves.input": self.halves.input if self.halves else Curve(),
            "halves.weight": self.halves.weight if self.halves else Curve(),
            "temporaries.forward": held.forward,
            "temporaries.backward": held.backward,
            "temporaries.loss_bytes_per_sample": Curve(lines=((0.0, held.loss_bytes_per_sample),)),
            "temporaries.input_half": held.halves[0],
            "temporaries.weight_half": held.halves[1],
            "temporaries.held_gradients": held.held_gradients or Curve(),
            "saved": self.saved.curve if self.saved else Curve(),
            "between_halves": self.between_halves.curve if self.between_halves else Curve(),
        }
        for name, curve in curves.items():
            where = f"cost of op {self.op} on {self.device_type}, {name}"
            for fixed, slope in curve.lines:
                if not (abs(fixed) < float("inf") and 0 <= slope < float("inf")):
                    raise InvalidInput(f"is {fixed} + {slope} n, must be finite and not falling", where=where)
            if (least := max((fixed for fixed, _ in curve.lines), default=0.0)) < 0:
                raise InvalidInput(f"begins at {least} for 0 samples, must not be negative", where=where)


def _at_least(least: Curve, measured: Curve | None) -> Curve:
    return least if measured is None else Curve(lines=least.lines + measured.lines)
