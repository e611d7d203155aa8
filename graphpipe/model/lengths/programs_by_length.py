"""The programs of a model for inputs of any lengths, of which few are captured."""

import warnings
from collections.abc import Callable
from typing import final

from graphpipe.errors import InvalidInput
from graphpipe.model.lengths.length_family import Inputs, LengthFamily, Member, Programs
from graphpipe.user_frames import warn_user

_MANY = 8
"""Captures after which a user is told what prevents fewer. A few lengths are captured in any case."""
_VAIN = 3
"""Captures of lengths that nobody asked for and that belonged to no family, after which there are no more of them."""


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
        self._vain = 0
        self._told = False

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
        known = self._between(inputs)
        if known is None and self._reach(inputs):
            known = self._between(inputs)
        if known is not None:
            return known
        self.captures += 1
        programs = self._capture(inputs)
        self.add(inputs, programs)
        if self.captures >= _MANY and self._obstacle and not self._told:
            self._told = True
            warn_user(
                f"{_MANY} shapes of inputs were captured, each by itself: '{self._obstacle}' is computed otherwise for "
                "other lengths. Pad the samples to a few lengths if a capture takes long"
            )
        return programs

    def _between(self, inputs: Inputs) -> Programs | None:
        return next((found for each in self._families if (found := each.between(inputs)) is not None), None)

    def _reach(self, inputs: Inputs) -> bool:
        # Lengths that grow would each be captured. One that is far ahead is captured in place of the first of them.
        # Returns whether a family has got it.
        for family in self._families if self._vain < _VAIN else ():
            if (farther := family.farther(inputs)) is None:
                continue
            self.captures += 1
            try:
                with warnings.catch_warnings(action="ignore"):
                    member = Member.of(farther, self._capture(farther))
            except InvalidInput:  # such as longer than the model has positions for
                member = None
            if member is not None and family.obstacle(member) is None:
                family.members.append(member)
                return True
            family.close(inputs)
            self._vain += 1
        return False
