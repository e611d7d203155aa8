"""The journal of answers: a file that only grows, so that no answer is lost and none is computed twice.

It begins with a line that names the job. Every answer is a record:

    8 bytes, little endian: the length | the answer's tensors, as a safetensors file of that length

The names, the failed samples and the number of samples are in the metadata of the safetensors file. A record that is
cut off, because the process was killed while it wrote, does not count and is removed.
"""

import json
import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

from safetensors.torch import load, save
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.files.lock import acquire
from graphpipe.run.checkpoint.safetensors_files import cpu_copies
from graphpipe.run.comm.collective_calls import unusable_file
from graphpipe.run.inference.request_queue import Answer, FailedSample
from graphpipe.run.stage.tensor_tree import leaves

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRecord:
    """The answer to a request, as the journal holds it."""

    outputs: dict[str, Tensor]
    """The outputs by name; empty if every sample failed."""
    samples: int
    """Number of samples of the request. A request that could not be read counts as one."""
    failed: tuple[FailedSample, ...]
    seconds: float
    """Seconds since the answer before it, or since the requests of this start were begun."""


class Journal:
    """Appends answers to a journal, in order. Only the rank of the output stage does.

    Args:
        path: of the journal. A file that exists is continued.
        title: what the answers are of. A journal with another title is refused.

    Raises:
        InvalidInput: the file cannot be written, has another title, or another process writes to it.
    """

    def __init__(self, path: Path, title: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("r+b" if path.exists() else "w+b")
        except OSError as error:
            raise unusable_file(error) from None
        if acquire(self._file.fileno()) is False:
            self._file.close()
            raise InvalidInput("another process writes answers to it", where=str(path), remedy="Wait until it ends.")
        end = _whole_end(path, title)
        self._file.truncate(end)
        self._file.seek(end)
        self._last = time.perf_counter()
        if not end:
            self._file.write(title.encode() + b"\n")
            self._file.flush()

    def append(self, answer: Answer) -> None:
        """Write an answer. It survives the end of this process.

        Raises:
            InvalidInput: the file cannot be written, or an output cannot be stored.
        """
        outputs = cpu_copies(named_outputs(answer.outputs)) if answer.outputs is not None else {}
        failed = json.dumps([[failure.sample, failure.reason] for failure in answer.failed])
        seconds, self._last = time.perf_counter() - self._last, time.perf_counter()
        record = save(outputs, metadata={"samples": str(answer.samples), "failed": failed, "seconds": repr(seconds)})
        try:
            self._file.write(_LENGTH.pack(len(record)) + record)
            self._file.flush()
        except OSError as error:
            raise unusable_file(error) from None

    def __enter__(self) -> Self:
        """Return the journal; it closes at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Write what is left to the disk, and close."""
        os.fsync(self._file.fileno())
        self._file.close()


def title_of(*what: str) -> str:
    """Return a title from texts: a journal of other texts is not continued."""
    return f"graphpipe answers 1 {sha256(json.dumps(what).encode()).hexdigest()}"


def count_answers(path: Path, title: str) -> int:
    """Return how many whole answers a journal has; 0 if there is none.

    Raises:
        InvalidInput: the journal has another title or cannot be read.
    """
    return sum(1 for _ in _records(path, title)) if path.exists() else 0


def read_answers(path: Path, title: str) -> Iterator[AnswerRecord]:
    """Yield the answers of a journal, in order.

    Raises:
        InvalidInput: the journal has another title or cannot be read.
    """
    with path.open("rb") as file:
        for start, length in _records(path, title):
            file.seek(start)
            yield _decoded(file.read(length))


def _decoded(content: bytes) -> AnswerRecord:
    (length,) = _LENGTH.unpack_from(content)
    about = json.loads(content[_LENGTH.size : _LENGTH.size + length])["__metadata__"]
    failed = tuple(FailedSample(sample=sample, reason=reason) for sample, reason in json.loads(about["failed"]))
    samples, seconds = int(about["samples"]), float(about["seconds"])
    return AnswerRecord(outputs=load(content), samples=samples, failed=failed, seconds=seconds)


def _whole_end(path: Path, title: str) -> int:
    end = 0 if not path.stat().st_size else len(title) + 1
    for start, length in _records(path, title):
        end = start + length
    return end


def _records(path: Path, title: str) -> Iterator[tuple[int, int]]:
    """Yield the start and the length of every whole record."""
    try:
        size = path.stat().st_size
        if not size:
            return
        with path.open("rb") as file:
            if file.readline(1000) != title.encode() + b"\n":
                remedy = "Remove the file, or run the command that it is of."
                raise InvalidInput("has the answers of another command", where=str(path), remedy=remedy)
            at = file.tell()
            while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
                (length,) = _LENGTH.unpack(head)
                if (at := at + _LENGTH.size) + length > size:
                    return
                yield at, length
                at += length
                file.seek(at)
    except OSError as error:
        raise unusable_file(error) from None


WHOLE = "output"
"""The name of the output of a model that returns one tensor."""


def named_outputs(tree: object) -> dict[str, Tensor]:
    """Return the tensors of a model's output by name: `output`, or the keys and positions that lead to each.

    tensor -> output        (a, b) -> output.0, output.1        {"logits": a, "states": [b]} -> logits, states.0
    """
    if isinstance(tree, Tensor):
        return {WHOLE: tree}
    outputs: dict[str, Tensor] = {}
    _collect(tree, "", outputs)
    return outputs


def _collect(tree: object, name: str, outputs: dict[str, Tensor]) -> None:
    if isinstance(tree, Tensor):
        outputs[name] = tree
    elif isinstance(tree, Mapping):
        for key, value in cast("Mapping[Any, object]", tree).items():
            _collect(value, f"{name}.{key}" if name else str(key), outputs)
    elif isinstance(tree, tuple | list):
        for position, value in enumerate(cast("Iterable[object]", tree)):
            _collect(value, f"{name or WHOLE}.{position}", outputs)
    else:  # a container that is registered with PyTorch
        for position, leaf in enumerate(leaves(tree)):
            outputs[f"{name or WHOLE}.{position}"] = leaf
