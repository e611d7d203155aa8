"""Files of answers. A reader sees the old file or the whole new one, never a part."""

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.files.permissions import with_usual_permissions
from graphpipe.inference.journal import AnswerRecord
from graphpipe.run.checkpoint.folder import sync_to_disk
from graphpipe.run.checkpoint.safetensors_files import write_tensors
from graphpipe.run.comm.collective_calls import unusable_file

FAILED = "graphpipe.failed"
"""The tensor that is true for every sample that failed."""
Answers = Callable[[], Iterator[AnswerRecord]]
"""Reads all answers, in order; called once for every pass over them."""


def check_ending(path: Path) -> None:
    """Check that a file of answers has a known format.

    Raises:
        InvalidInput: its ending is not known, or its place is a folder.
    """
    if path.suffix not in _WRITERS:
        remedy = f"Write {', '.join(_WRITERS)}."
        raise InvalidInput(f"'{path.name}' has no known ending", where="--output", remedy=remedy)
    if path.is_dir():
        raise InvalidInput("is a folder", where=str(path), remedy="Choose a file.")


def write_answers(path: Path, answers: Answers) -> None:
    """Write all answers to one file, in the format that its ending names.

    Raises:
        InvalidInput: the file cannot be written; an old file is unchanged.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        _WRITERS[path.suffix](part, answers)
        sync_to_disk(part)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise unusable_file(error) from None


def _write_lines(part: Path, answers: Answers) -> None:
    with part.open("w", encoding="utf-8") as file:
        for number, answer in enumerate(answers()):
            print(json.dumps(_as_json(number, answer), allow_nan=False), file=file)


def _as_json(number: int, answer: AnswerRecord) -> dict[str, Any]:
    bad = {failure.sample for failure in answer.failed}
    rows = {name: _rows(output.tolist(), bad) for name, output in answer.outputs.items()} or None
    failed = [{"sample": failure.sample, "reason": failure.reason} for failure in answer.failed]
    return {"request": number, "outputs": rows, "failed": failed}


def _rows(rows: Any, bad: set[int]) -> list[Any]:
    return [None if number in bad else _finite(row) for number, row in enumerate(rows)]


def _finite(value: Any) -> Any:
    # JSON has no infinity and no NaN.
    if isinstance(value, list):
        return [_finite(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _joined(answers: Answers) -> dict[str, Tensor]:
    """Return the outputs of all requests, row after row, and which samples failed.

    Raises:
        InvalidInput: requests have outputs of different shapes.
    """
    count = sum(answer.samples for answer in answers())
    whole, at = {FAILED: torch.zeros(count, dtype=torch.bool)}, 0
    for number, answer in enumerate(answers()):
        for name, rows in answer.outputs.items():
            if name not in whole:
                whole[name] = rows.new_zeros((count, *rows.shape[1:]))
            if whole[name].shape[1:] != rows.shape[1:]:
                shapes = f"{[*rows.shape[1:]]}, others {[*whole[name].shape[1:]]}"
                what = f"'{name}' of request {number} has rows of {shapes}"
                raise InvalidInput(what, where="outputs", remedy="Write the answers to a file that ends in .jsonl.")
            whole[name][at : at + answer.samples] = rows
        for failure in answer.failed:
            whole[FAILED][at + failure.sample] = True
        at += answer.samples
    return whole


def _write_safetensors(part: Path, answers: Answers) -> None:
    write_tensors(part, _joined(answers))


def _write_npz(part: Path, answers: Answers) -> None:
    # NumPy has no bfloat16: its values are exact in float32.
    joined = _joined(answers)
    arrays = {name: (it.float() if it.dtype == torch.bfloat16 else it).numpy() for name, it in joined.items()}
    with with_usual_permissions(part), part.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


_WRITERS = {".jsonl": _write_lines, ".safetensors": _write_safetensors, ".npz": _write_npz}
