"""metrics.jsonl: a line per step, as it happens."""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from graphpipe.errors import InvalidInput
from graphpipe.files.json_document import from_body, to_body, write_text
from graphpipe.files.json_lines import read_lines
from graphpipe.training.run_folder.train_result import Step


def read_log(path: Path) -> list[Step]:
    """Return the steps of a log, up to a line that was not finished; none if there is no log.

    Raises:
        InvalidInput: the log cannot be read, or its steps do not ascend.
    """
    steps: list[Step] = []
    for where, body in read_lines(path):
        steps.append(from_body(Step, body, where))
        if len(steps) > 1 and steps[-1].step <= steps[-2].step:
            raise InvalidInput(f"step {steps[-1].step} follows {steps[-2].step}", where=where)
    return steps


@contextmanager
def write_log(path: Path, steps: Sequence[Step]) -> Generator[TextIO]:
    """Open a log that holds these steps, to append others."""
    write_text(path, "".join(f"{json.dumps(to_body(step))}\n" for step in steps))
    with path.open("a", encoding="utf-8") as log:
        yield log
