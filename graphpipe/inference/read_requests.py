"""The requests of a file or of a user's function. Each is any number of samples.

A file of tensors (.safetensors, .npz, .npy) has a tensor for every input of the model, with a row per sample. It is cut
into requests. A file of JSON lines has a request on each line: `{"x": [[0.5, 1.0], [0.1, 0.2]]}`, or only the rows for
a model with one input. A function (`file.py:function`) returns requests as `InferencePipeline.map` takes them.
"""

import json
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.graph import Input
from graphpipe.model.inputs import Inputs
from graphpipe.run.inference.request_queue import Refused
from graphpipe.training.task.user_function import call

Rows = Callable[[int, int], Tensor]
"""Returns the rows from one sample to another."""
Columns = dict[str, tuple[int, Rows]]
"""Tensors of a file by name, each with its number of rows and a function that reads some."""
_LINES = ".jsonl"


def read_requests(data: str, folder: Path, inputs: Sequence[Input], samples: int) -> Iterator[Inputs | Refused]:
    """Yield the requests, in order.

    Args:
        data: a file, or a function as `file.py:function` or `package.module:function`.
        folder: where relative paths begin.
        inputs: of the model.
        samples: of each request that is cut from a file of tensors. The last one may have fewer.

    Raises:
        InvalidInput: the file or the function cannot be used. One bad line of JSON lines is only a refused request.
    """
    if _is_function(data):
        yield from cast("Iterable[Inputs]", _called(data, folder))
        return
    path = folder / data
    if path.suffix == _LINES:
        yield from _lines(path, inputs)
        return
    with _columns(path, inputs) as columns:
        total = _count(columns, inputs, path)
        for start in range(0, total, samples):
            stop = min(start + samples, total)
            yield {entry.name: _as_input(columns[entry.name][1](start, stop), entry) for entry in inputs}


def check_requests(data: str, folder: Path, inputs: Sequence[Input]) -> None:
    """Check, before any rank starts, what can be known without reading all of it.

    Raises:
        InvalidInput: the file is missing, has an unknown ending, or does not have the model's inputs.
    """
    if _is_function(data):
        return
    path = folder / data
    if path.suffix == _LINES:
        next(_lines(path, inputs), None)
        return
    with _columns(path, inputs) as columns:
        _count(columns, inputs, path)


def _is_function(data: str) -> bool:
    return ":" in data and Path(data).suffix not in {*_READERS, _LINES}


def _called(word: str, folder: Path) -> Iterable[object]:
    requests = call(word, folder)
    if not isinstance(requests, Iterable) or isinstance(requests, Tensor | Mapping | str):
        what = f"returned {type(requests).__name__}, must return requests one after the other"
        raise InvalidInput(what, where=f"'{word}'", remedy="Return a list of inputs, or yield them.")
    return cast("Iterable[object]", requests)


@contextmanager
def _columns(path: Path, inputs: Sequence[Input]) -> Generator[Columns]:
    """Open a file of tensors.

    Raises:
        InvalidInput: the file cannot be read.
    """
    if path.suffix not in _READERS:
        remedy = f"Give a file that ends in {', '.join((*_READERS, _LINES))}, or file.py:function."
        raise InvalidInput(f"'{path.name}' has no known ending", where="--data", remedy=remedy)
    try:
        path.open("rb").close()  # one message for every format
        with _READERS[path.suffix](path, inputs) as columns:
            yield columns
    except (OSError, EOFError, ValueError, SafetensorError, BadZipFile, zlib.error) as error:
        if isinstance(error, InvalidInput):
            raise
        text = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InvalidInput(f"cannot be read: {text}", where=str(path)) from None


@contextmanager
def _safetensors(path: Path, _: Sequence[Input]) -> Generator[Columns]:
    with safe_open(path, framework="pt") as file:

        def column(name: str) -> tuple[int, Rows]:
            piece: Any = file.get_slice(name)
            shape: list[int] = piece.get_shape()
            return (shape[0] if shape else 0), lambda start, stop: cast("Tensor", piece[start:stop])

        yield {name: column(name) for name in file.keys()}  # noqa: SIM118 (the file is not a dict)


@contextmanager
def _npz(path: Path, _: Sequence[Input]) -> Generator[Columns]:
    with np.load(path, allow_pickle=False) as file:
        yield {name: _array(file[name]) for name in file.files}


@contextmanager
def _npy(path: Path, inputs: Sequence[Input]) -> Generator[Columns]:
    if len(inputs) != 1:
        names = ", ".join(entry.name for entry in inputs)
        raise InvalidInput("has one array", where=str(path), remedy=f"Give a .npz file with {names}.")
    yield {inputs[0].name: _array(np.load(path, mmap_mode="r", allow_pickle=False))}


def _array(array: "np.ndarray[Any, Any]") -> tuple[int, Rows]:
    count = array.shape[0] if array.ndim else 0
    return count, lambda start, stop: torch.from_numpy(np.array(array[start:stop]))


_READERS = {".safetensors": _safetensors, ".npz": _npz, ".npy": _npy}


def _count(columns: Columns, inputs: Sequence[Input], path: Path) -> int:
    """Return the number of samples in a file of tensors, after a look at the first.

    Raises:
        InvalidInput: an input is missing, has another shape or type than the model's, or another number of rows.
    """
    for entry in inputs:
        if entry.name not in columns:
            names = ", ".join(sorted(columns)) or "none"
            remedy = f"Its tensors are {names}. Rename one, or write one with a row per sample."
            raise InvalidInput(f"has no tensor '{entry.name}', which the model reads", where=str(path), remedy=remedy)
        rows = _as_input(columns[entry.name][1](0, 1), entry) if columns[entry.name][0] else None
        if rows is not None and (tuple(rows.shape[1:]), rows.dtype) != (entry.sample_shape, _dtype(entry)):
            given = f"{str(rows.dtype).removeprefix('torch.')}{[*rows.shape[1:]]}"
            what = f"a row of '{entry.name}' is {given}, the model reads {entry.dtype}{[*entry.sample_shape]}"
            raise InvalidInput(what, where=str(path))
    counts = {entry.name: columns[entry.name][0] for entry in inputs}
    if not all(counts.values()) or len({*counts.values()}) != 1:
        listed = ", ".join(f"'{name}' has {count}" for name, count in counts.items())
        remedy = "Every input needs one row for each sample."
        raise InvalidInput(f"the numbers of samples cannot be used: {listed}", where=str(path), remedy=remedy)
    return next(iter(counts.values()))


def _lines(path: Path, inputs: Sequence[Input]) -> Iterator[Inputs | Refused]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _line(line, inputs, f"line {number}")
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", where=str(path)) from None


def _line(line: str, inputs: Sequence[Input], where: str) -> Inputs | Refused:
    try:
        body: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Refused(reason=f"{where} is not JSON: {error}")
    if not isinstance(body, dict):
        if len(inputs) != 1:
            names = ", ".join(entry.name for entry in inputs)
            return Refused(reason=f"{where} is not an object of the inputs {names}")
        body = {inputs[0].name: body}
    known = {entry.name: entry for entry in inputs}
    tensors: dict[str, Tensor] = {}
    for name, rows in cast("dict[str, Any]", body).items():
        if name not in known:
            return Refused(reason=f"{where}: the model takes no input '{name}'")
        try:
            tensors[name] = torch.tensor(rows, dtype=_dtype(known[name]))
        except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
            return Refused(reason=f"{where}, input '{name}': {' '.join(str(error).split())[:200]}")
    return tensors


def _dtype(entry: Input) -> torch.dtype:
    return getattr(torch, entry.dtype)


def _as_input(rows: Tensor, entry: Input) -> Tensor:
    """Return rows of a file in the dtype of the model's input, if they are of the same kind and no value is lost.

    NumPy's default is float64. Floating-point numbers are rounded, whole numbers must fit.
    """
    wanted = _dtype(entry)
    if rows.dtype == wanted or rows.is_floating_point() != wanted.is_floating_point or wanted.is_complex:
        return rows
    changed = rows.to(wanted)
    return changed if wanted.is_floating_point or torch.equal(changed.to(rows.dtype), rows) else rows
