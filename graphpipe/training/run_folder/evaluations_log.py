"""evaluations.jsonl: one line per evaluation of the held-out samples."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from graphpipe.files.json_body import from_body, to_body
from graphpipe.files.json_lines import read_json_lines
from graphpipe.files.text_file import write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationMetrics:
    """One evaluation: a line of evaluations.jsonl."""

    step: int
    """Steps done."""
    loss: float | None
    """Mean loss over the held-out samples; None if they have no targets."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """What the task's `accuracy` and `metrics` returned, by name."""


def read_evaluations(path: Path) -> list[EvaluationMetrics]:
    """Return the evaluations of a log, without a last line that was cut short. A missing file has none.

    Raises:
        InvalidInput: the log cannot be read.
    """
    return [from_body(EvaluationMetrics, body, where) for where, body in read_json_lines(path)]


def write_evaluations(path: Path, evaluations: Sequence[EvaluationMetrics]) -> None:
    """Write a log of these evaluations."""
    write_text(path, "".join(f"{json.dumps(to_body(each))}\n" for each in evaluations))
