"""Programs that were captured for inputs of several lengths, and those for the lengths between them.

The programs of a family consist of the same, and all their numbers lie on one line:

    length     16    24    40          28
    arange     16    24    40    so    28       view      [N, 28, 4, 8]
    pad         4     4     4           4

A family of three makes the programs of the lengths between them, without a capture. Two of them give the line, and the
third shows that it is one. A remainder of a length is on no line, unless all captured lengths have the same one. So a
family makes only lengths that differ from its own by multiples of the greatest common divisor of their differences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from graphpipe.graph import Input
from graphpipe.model.lengths.program_numbers import ProgramNumbers, numbers_of, with_numbers
from graphpipe.model.split.module_stage import ModuleStage

Inputs = tuple[Input, ...]
Programs = tuple[ModuleStage, ...]
_ENOUGH = 3
"""Captures that make a family: two of them are on a line in any case."""


@dataclass(frozen=True, slots=True)
class Member:
    """Programs that were captured for inputs."""

    inputs: Inputs
    programs: Programs
    found: ProgramNumbers

    @staticmethod
    def of(inputs: Inputs, programs: Programs) -> "Member":
        """Return programs with their numbers."""
        return Member(inputs, programs, numbers_of(programs))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of a sample of every input."""
        return sizes_of(self.inputs)

    @property
    def point(self) -> tuple[int, ...]:
        """The sizes of the inputs, and the numbers of the programs."""
        return (*self.sizes, *self.found.numbers)


@dataclass(slots=True)
class LengthFamily:
    """Captured programs that consist of the same, and whose numbers lie on one line."""

    members: list[Member]
    """At least one, with lengths that differ."""
    closed: set[bool] = field(default_factory=set[bool])
    """The sides, longer (True) or shorter, at which a capture of a farther length did not belong here."""

    def obstacle(self, member: Member) -> str | None:
        """Return the value or operator that keeps programs out of this family; None if they belong here."""
        first = self.members[0]
        if not alike(first.inputs, member.inputs):
            return ""
        if first.found.rest != member.found.rest:
            pairs = zip(first.found.owners, member.found.owners, strict=False)
            return next((other for one, other in pairs if one != other), member.found.owners[-1])
        if len(self.members) == 1:
            return None
        names = ("",) * len(member.sizes) + member.found.owners
        line = self._line(member.sizes[self._at])
        off = (name for name, given, wanted in zip(names, member.point, line or (), strict=False) if given != wanted)
        return "" if line is None else next(off, None)

    def between(self, inputs: Inputs) -> Programs | None:
        """Return programs for inputs whose lengths lie between those of the members; None if they do not."""
        numbers = self.numbers_between(inputs)
        return None if numbers is None else with_numbers(self.members[0].programs, numbers)

    def numbers_between(self, inputs: Inputs) -> tuple[int, ...] | None:
        """Return the numbers of these programs; None if the lengths do not lie between those of the members."""
        if len(self.members) < _ENOUGH or not alike(self.members[0].inputs, inputs):
            return None
        sizes = sizes_of(inputs)
        place = sizes[self._at]
        if (place - self._shortest) % self._step or not self._shortest < place < self._longest:
            return None
        line = self._line(place)
        return None if line is None or line[: len(sizes)] != sizes else line[len(sizes) :]

    def farther(self, inputs: Inputs) -> Inputs | None:
        """Return inputs of about twice or a quarter of the length; None if it lies between those of the members.

        If programs for them belong here, those for the given inputs lie between, and for many others.
        """
        if len(self.members) < _ENOUGH - 1 or not alike(self.members[0].inputs, inputs):
            return None
        sizes = sizes_of(inputs)
        place, step = sizes[self._at], self._step
        longer, line = place > self._longest, self._line(place)
        outside = longer or place < self._shortest
        if not outside or longer in self.closed or line is None or line[: len(sizes)] != sizes:
            return None
        steps = -(-place // step) if longer else -(3 * place // 4 // step)
        found = self._line(place + steps * step)
        if not steps or found is None or min(found[: len(sizes)]) < 1:
            return None
        return _with_sizes(inputs, found[: len(sizes)])

    def close(self, inputs: Inputs) -> None:
        """Note that inputs on this side do not belong here."""
        self.closed.add(sizes_of(inputs)[self._at] > self._longest)

    @property
    def _at(self) -> int:
        # The first size in which the first two members differ.
        one, other = self.members[0].sizes, self.members[1].sizes
        return next(at for at, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])

    @property
    def _places(self) -> list[int]:
        return [each.sizes[self._at] for each in self.members]

    @property
    def _shortest(self) -> int:
        return min(self._places)

    @property
    def _longest(self) -> int:
        return max(self._places)

    @property
    def _step(self) -> int:
        return gcd(*(place - self._places[0] for place in self._places))

    def _line(self, place: int) -> tuple[int, ...] | None:
        # The point of the line at which the first differing size is `place`; None if it has no whole numbers there.
        one, other = self.members[0].point, self.members[1].point
        ahead, length = place - one[self._at], other[self._at] - one[self._at]
        if any((second - first) * ahead % length for first, second in zip(one, other, strict=True)):
            return None
        return tuple(first + (second - first) * ahead // length for first, second in zip(one, other, strict=True))


def sizes_of(inputs: Inputs) -> tuple[int, ...]:
    """Return the sizes of a sample of every input."""
    return tuple(size for each in inputs for size in each.sample_shape)


def alike(inputs: Inputs, others: Inputs) -> bool:
    """Whether inputs differ in their sizes only."""
    return [(each.name, each.dtype, len(each.sample_shape)) for each in inputs] == [
        (each.name, each.dtype, len(each.sample_shape)) for each in others
    ]


def _with_sizes(inputs: Inputs, sizes: Sequence[int]) -> Inputs:
    rest = iter(sizes)
    return tuple(replace(each, sample_shape=tuple(next(rest) for _ in each.sample_shape)) for each in inputs)
