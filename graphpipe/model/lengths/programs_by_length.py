"""The programs of a model for inputs of any lengths, of which few are captured."""

import warnings
from collections.abc import Callable
from typing import final

from graphpipe.errors import InvalidInput
from graphpipe.model.lengths.length_family import Inputs, LengthFamily, Member, Programs
from graphpipe.user_frames import warn_user

_MANY = 8
"""Captures after which a user is told what prevents fewer. A few lengths are captured in any case."""


@final
class ProgramsByLength:
    """Captures programs for inputs, or makes them from those that were captured for others.

    Args:
        capture: captures a model with inputs, and cuts it as a plan does.
    """

    captures: int = 0
    """How often it was called for inputs that were asked for, or in place of them."""

    def __init__(self, capture: Callable[[Inputs], Programs]) -> None:
        self._capture = capture
        self._families: list[LengthFamily] = []
        self._obstacle = ""

    def add(self, inputs: Inputs, programs: Programs) -> None:
        """Add programs that were captured for inputs."""
        member = Member.of(inputs, programs)
        for family in self._families:
            if (obstacle := family.obstacle(member)) is None:
                family.members.append(member)
                return
            self._obstacle = obstacle or self._obstacle
        self._families.append(LengthFamily([member]))

    def make(self, inputs: Inputs) -> Programs:
        """Return programs for inputs that no program was made for.

        Raises:
            InvalidInput: the model cannot be captured with these inputs.
        """
        if (known := self._between(inputs)) is not None:
            return known
        self._reach(inputs)
        if (known := self._between(inputs)) is not None:
            return known
        self.captures += 1
        programs = self._capture(inputs)
        self.add(inputs, programs)
        if self.captures == _MANY and self._obstacle:
            warn_user(
                f"{_MANY} shapes of inputs were captured, each by itself: '{self._obstacle}' is computed otherwise for "
                "other lengths. Pad the samples to a few lengths if a capture takes long"
            )
        return programs

    def _between(self, inputs: Inputs) -> Programs | None:
        return next((found for each in self._families if (found := each.between(inputs)) is not None), None)

    def _reach(self, inputs: Inputs) -> None:
        # Lengths that grow would each be captured. One that is far ahead is captured in place of the first of them.
        for family in self._families:
            if (farther := family.farther(inputs)) is None:
                continue
            try:
                with warnings.catch_warnings(action="ignore"):
                    member = Member.of(farther, self._capture(farther))
            except InvalidInput:  # such as longer than the model has positions for
                family.close(inputs)
                continue
            self.captures += 1
            if family.obstacle(member) is None:
                family.members.append(member)
                return
            family.close(inputs)
