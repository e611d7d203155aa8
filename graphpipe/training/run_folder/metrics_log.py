"""metrics.jsonl: one line per optimizer step, written as it happens."""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body, to_body
from graphpipe.files.json_lines import read_json_lines
from graphpipe.files.regular_file import append_text
from graphpipe.files.text_file import write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One optimizer step: a line of metrics.jsonl."""

    step: int
    """From 1."""
    loss: float
    seconds: float
    gradient_norm: float | None = None
    """The 2-norm of all gradients, before clipping. None if it was not computed, or is not finite."""
    learning_rate: float | None = None
    """The largest of the parameter groups of rank 0. None if it trains nothing, or within a segment without a flush."""


def read_metrics_log(path: Path) -> list[StepMetrics]:
    """Return the steps of a log, without a last line that was cut short. A missing file has no steps.

    Raises:
        InvalidInput: the log cannot be read, or its steps do not ascend.
    """
    steps: list[StepMetrics] = []
    for where, body in read_json_lines(path):
        steps.append(from_body(StepMetrics, body, where))
        if len(steps) > 1 and steps[-1].step <= steps[-2].step:
            raise InvalidInput(f"step {steps[-1].step} follows {steps[-2].step}", where=where)
    return steps


@contextmanager
def open_metrics_log(path: Path, steps: Sequence[StepMetrics]) -> Generator[TextIO]:
    """Write a log of these steps, and keep it open so that further lines can be appended."""
    write_text(path, "".join(f"{json.dumps(to_body(step))}\n" for step in steps))
    with append_text(path) as log:
        yield log
