"""Requests of any number of samples, cut and joined into windows, and their answers.

requests    0 0 0 | 1 | 2 2 2 2        windows of 4 samples    0 0 0 1 | 2 2 2 2
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graphpipe.plans.sharding import SampleRange
from graphpipe.run.stage.tensor_tree import leaves, map_tensors
from graphpipe.run.step.gather_outputs import Piece, join


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSample:
    """A sample without an answer."""

    sample: int
    """Position of the sample in the request."""
    reason: str
    """The stage that failed and its error, or what is wrong with the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The model's output for one request."""

    outputs: Any
    """A tensor, or a tree of tensors, with one row per sample. None if every sample failed."""
    samples: int
    """Number of samples of the request. A request that could not be read counts as one."""
    failed: tuple[FailedSample, ...] = ()
    """The samples that failed. Their rows of the outputs mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """In place of a request: it could not be read, and fails as a whole."""

    reason: str


@dataclass(slots=True, kw_only=True)
class Request:
    """A request, and what is known of its answer."""

    inputs: Mapping[str, Tensor]
    """The inputs by name; empty if the request cannot be used."""
    size: int
    failed: list[FailedSample] = field(default_factory=list[FailedSample])
    pieces: list[Piece] = field(default_factory=list[Piece])
    taken: int = 0
    """Number of samples that are in a window, or answered."""
    left: int = 0
    """Number of samples without an answer."""

    def answer(self) -> Answer:
        """Return the answer, once no sample is left."""
        failed = tuple(sorted(self.failed, key=lambda failure: failure.sample))
        return Answer(outputs=self._joined() if self.pieces else None, samples=self.size, failed=failed)

    def _joined(self) -> Any:
        # Samples of a micro-batch that failed as a whole have no piece: they get rows of zeros.
        pieces, at = sorted(self.pieces, key=lambda piece: piece[0]), 0
        whole: list[Piece] = []
        for rows, tree in (*pieces, (SampleRange(self.size, self.size), None)):
            if rows.start > at:
                gap = rows.start - at
                blank = map_tensors(pieces[0][1], lambda tensor, gap=gap: tensor.new_zeros((gap, *tensor.shape[1:])))
                whole.append((SampleRange(at, rows.start), blank))
            if tree is not None:
                whole.append((rows, tree))
            at = rows.stop
        return join(whole)


@dataclass(slots=True)
class RequestQueue:
    """The requests that have no answer yet, in order."""

    waiting: deque[Request] = field(default_factory=deque[Request])

    def add(self, inputs: Mapping[str, Tensor], size: int) -> None:
        """Add a request."""
        self.waiting.append(Request(inputs=inputs, size=size, left=size))

    def refuse(self, reason: str, size: int = 1) -> None:
        """Add a request that fails as a whole, every sample for the same reason."""
        failed = [FailedSample(sample=sample, reason=reason) for sample in range(size)]
        self.waiting.append(Request(inputs={}, size=size, failed=failed, taken=size))

    @property
    def samples(self) -> int:
        """Samples that are in no window."""
        return sum(request.size - request.taken for request in self.waiting)

    def window(self, most: int) -> tuple[dict[str, Tensor], list[tuple[Request, SampleRange]]]:
        """Take the next samples, at most `most`; return their inputs, and of which samples of a request they are."""
        parts: list[tuple[Request, SampleRange]] = []
        for request in self.waiting:
            count = min(request.size - request.taken, most)
            if count:
                parts.append((request, SampleRange(request.taken, request.taken + count)))
                request.taken, most = request.taken + count, most - count
        names = parts[0][0].inputs
        cut = [{name: it.inputs[name][rows.start : rows.stop] for name in names} for it, rows in parts]
        return {name: cut[0][name] if len(cut) == 1 else torch.cat([it[name] for it in cut]) for name in names}, parts

    @staticmethod
    def settle(
        parts: Sequence[tuple[Request, SampleRange]], results: Sequence[Piece], failures: Mapping[int, str]
    ) -> None:
        """Give the requests of a window their outputs and failures, which are by sample of the window."""
        at = 0
        for request, rows in parts:
            here = SampleRange(at, at + len(rows))
            shift = rows.start - at
            for samples, tree in results:
                if len(both := samples & here):
                    first, stop = both.start - samples.start, both.stop - samples.start
                    cut = map_tensors(tree, lambda tensor, first=first, stop=stop: tensor[first:stop].clone())
                    request.pieces.append((SampleRange(both.start + shift, both.stop + shift), cut))
            request.failed += [
                FailedSample(sample=sample + shift, reason=failures[sample])
                for sample in range(here.start, here.stop)
                if sample in failures
            ]
            request.left -= len(rows)
            at = here.stop

    def finished(self) -> Iterator[Request]:
        """Remove and yield the first requests that have their whole answer, in order."""
        while self.waiting and not self.waiting[0].left:
            yield self.waiting.popleft()


def one_row_each(results: Sequence[Piece]) -> bool:
    """Return whether every output tensor has one row per sample."""
    return all(leaf.ndim and leaf.shape[0] == len(rows) for rows, tree in results for leaf in leaves(tree))
