"""A range of rows or columns of a parameter, and its name: `top.linear.weight[:, 0:4096]`."""

import re
from dataclasses import dataclass

_NAME = re.compile(r"(?P<parameter>.+)\[(?P<before>(:, )*)(?P<start>\d+):(?P<stop>\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSlice:
    """The entries `start` to `stop` of one dimension of a parameter, and everything of its other dimensions."""

    parameter: str
    """Fully qualified name of the parameter, as in the user's module."""
    dimension: int
    start: int
    stop: int
    """The position after the last one of the slice."""

    @property
    def name(self) -> str:
        """The name of the slice, which reads like an index in Python."""
        return f"{self.parameter}[{':, ' * self.dimension}{self.start}:{self.stop}]"

    @staticmethod
    def parse(name: str) -> "ParameterSlice | None":
        """Return the slice of this name; None for the name of a whole parameter."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        dimension = match["before"].count(":")
        start, stop = int(match["start"]), int(match["stop"])
        return ParameterSlice(parameter=match["parameter"], dimension=dimension, start=start, stop=stop)


def parameter_of(name: str) -> str:
    """Return the parameter that a name is of: itself, or that of a slice."""
    part = ParameterSlice.parse(name)
    return part.parameter if part else name
