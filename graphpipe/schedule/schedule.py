"""The schedule: which task each device does in which order, and its text form."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from graphpipe.errors import InvalidInput

Kind = Literal["F", "B", "I", "W", "U"]
_TASK = re.compile(r"^([FBIWU])(\d+)\.(\d+)$")


class StageTask(NamedTuple):
    """Forward, backward, or the input- and weight-gradient halves of a backward, of one micro-batch at one stage.

    In a segment of several mini-batches, the update of a stage's weights (`U`) is a task too.
    """

    kind: Kind
    stage: int
    micro_batch: int
    """Number of the micro-batch, counted on through the mini-batches of a segment. An update has its mini-batch's
    number in the segment."""

    def __str__(self) -> str:
        """Return the text form: `F2.5` is stage 2's forward of micro-batch 5, `U2.0` its update after mini-batch 0."""
        return f"{self.kind}{self.stage}.{self.micro_batch}"

    @staticmethod
    def parse(text: str) -> "StageTask":
        """Return the task that a text form stands for.

        Raises:
            InvalidInput: the text is not of the form `F2.5`.
        """
        match = _TASK.match(text)
        if match is None:
            raise InvalidInput(
                f"'{text}' is not a task", remedy="A task reads F2.5: kind F, B, I, W or U, stage, micro-batch."
            )
        return StageTask(match[1], int(match[2]), int(match[3]))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """An ordered list of tasks per device. All replicas of a stage do the same tasks of that stage.

    Without updates, it is one mini-batch, and every stage updates its weights at the end. With updates, it is a
    segment: one mini-batch or more, and every stage updates its weights once per mini-batch.
    """

    name: str
    devices: tuple[tuple[StageTask, ...], ...]

    def __str__(self) -> str:
        """Return the text form: a line with the name, then a line of tasks per device."""
        lines = [f"schedule {self.name}"]
        lines += [" ".join([f"{number}:", *map(str, tasks)]) for number, tasks in enumerate(self.devices)]
        return "\n".join(lines) + "\n"

    @property
    def mini_batches(self) -> int:
        """How many mini-batches the schedule computes."""
        return 1 + max((task.micro_batch for tasks in self._orders for task in tasks if task.kind == "U"), default=0)

    @property
    def updates(self) -> bool:
        """Whether updates are tasks, as in a segment."""
        return any(task.kind == "U" for tasks in self._orders for task in tasks)

    @property
    def split_stages(self) -> frozenset[int]:
        """The stages whose backward is split into two halves."""
        return frozenset(task.stage for tasks in self._orders for task in tasks if task.kind == "I")

    @property
    def _orders(self) -> Iterable[tuple[StageTask, ...]]:
        """The tasks of the devices. Replicas that share a tuple count once."""
        return {id(tasks): tasks for tasks in self.devices}.values()

    @staticmethod
    def parse(text: str) -> "Schedule":
        """Return the schedule that a text form stands for, so that `parse(str(schedule)) == schedule`.

        Raises:
            InvalidInput: a line is malformed. The error names its number.
        """
        lines = text.splitlines()
        if not lines or not lines[0].startswith("schedule "):
            raise InvalidInput("does not begin with 'schedule NAME'", where="schedule text, line 1")
        devices: list[tuple[StageTask, ...]] = []
        for number, line in enumerate(lines[1:], start=2):
            head, *tasks = line.split()
            if head != f"{len(devices)}:":
                raise InvalidInput(
                    f"begins with '{head}', expected '{len(devices)}:'", where=f"schedule text, line {number}"
                )
            devices.append(tuple(StageTask.parse(task) for task in tasks))
        return Schedule(name=lines[0].removeprefix("schedule ").strip(), devices=tuple(devices))
