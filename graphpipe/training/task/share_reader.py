"""Reads a rank's share of a mini-batch from a data set: only the samples and columns that its stages consume."""

import os
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from graphpipe.errors import InvalidInput
from graphpipe.run.device.rng import derive_seed
from graphpipe.run.device.seeded import seed_all, seeded
from graphpipe.run.stage.shares.batch_share import BatchShare
from graphpipe.run.stage.shares.needs import Needs
from graphpipe.run.stage.tensor_tree import leaves, map_tensors
from graphpipe.training.task.sample_source import TARGETS, SampleSource
from graphpipe.user_frames import describe_error

_OPEN_FILES = "/proc/self/fd"


class BatchRequest(NamedTuple):
    """A mini-batch to read."""

    epoch: int
    """Number of the epoch, from 0. Random numbers of a sample depend on it."""
    samples: list[int]
    """Indices of all samples of the mini-batch."""


class _Group(NamedTuple):
    # Samples of which the same is wanted.
    dataset: Any
    """With the wanted columns."""
    positions: list[int]
    """In the mini-batch."""
    names: tuple[str, ...]
    """The wanted inputs; `TARGETS` for the targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareReader:
    """Reads what one rank needs of mini-batches of one size."""

    source: SampleSource
    needs: Needs
    groups: tuple[_Group, ...]
    seed: int
    """Of the training. Random numbers that a sample draws depend on it, the epoch and the sample's index alone."""

    @staticmethod
    def of(source: SampleSource, needs: Needs, seed: int) -> "ShareReader":
        """Return the reader of these rows.

        Raises:
            InvalidInput: the data set lacks a column that is needed.
        """
        rows_of = {**needs.inputs, **({TARGETS: needs.targets} if needs.targets and source.targets != () else {})}
        wanted: dict[int, list[str]] = {}
        for name, rows in rows_of.items():
            for row in rows:
                wanted.setdefault(row, []).append(name)
        if not source.selects:  # Samples are read whole.
            wanted = {row: [*rows_of] for row in wanted}
        positions: dict[tuple[str, ...], list[int]] = {}
        for row in sorted(wanted):
            positions.setdefault(tuple(wanted[row]), []).append(row)
        groups = [_Group(source.with_columns(names), rows, names) for names, rows in positions.items()]
        return ShareReader(source=source, needs=needs, groups=tuple(groups), seed=seed)

    def read(self, request: BatchRequest) -> BatchShare:
        """Return the share. The process-wide random generators are left as they were seeded.

        Raises:
            InvalidInput: a sample cannot be read, or samples cannot be joined.
        """
        pieces: dict[str, list[tuple[list[int], Any]]] = {}
        for group in self.groups:
            samples = [self._sample(group.dataset, request.samples[row], request.epoch) for row in group.positions]
            seed_all(derive_seed(self.seed, request.epoch, *(request.samples[row] for row in group.positions)))
            for name, values in self.source.join(samples, group.names).items():
                pieces.setdefault(name, []).append((group.positions, values))
        return BatchShare(
            samples=request.samples,
            inputs={name: self._rows(name, pieces[name], rows) for name, rows in self.needs.inputs.items()},
            targets=self._rows(TARGETS, pieces[TARGETS], self.needs.targets) if TARGETS in pieces else self._nothing(),
        )

    def _nothing(self) -> dict[str, Any] | None:
        return {} if self.needs.targets else None

    def _sample(self, dataset: Any, index: int, epoch: int) -> Any:
        seed_all(derive_seed(self.seed, epoch, index))
        try:
            return dataset[index]
        except Exception as error:
            raise InvalidInput(
                f"sample {index} cannot be read: {describe_error(error)}", where=self.source.field
            ) from (error)

    def _rows(self, name: str, pieces: Sequence[tuple[list[int], Any]], rows: Sequence[int]) -> Any:
        # The wanted rows of what the groups have read, in the order of the mini-batch.
        for positions, tree in pieces:
            for tensor in leaves(tree):
                if not tensor.ndim or len(tensor) != len(positions):
                    what = f"input '{name}'" if name else "targets"
                    raise InvalidInput(
                        f"{what} of shape {[*tensor.shape]} for {len(positions)} samples",
                        where="collate",
                        remedy="The first dimension of every input and target is the samples.",
                    )
        positions = [position for group, _ in pieces for position in group]
        columns = zip(*(leaves(tree) for _, tree in pieces), strict=True)
        place = {position: number for number, position in enumerate(positions)}
        order = [place[row] for row in rows]
        as_they_are = order == [*range(len(positions))]

        def joined(_: Tensor) -> Tensor:
            parts = next(columns)
            whole = parts[0] if len(parts) == 1 else torch.cat(parts)
            return whole if as_they_are else whole[order]

        return map_tensors(pieces[0][1], joined)


class _Refused(NamedTuple):
    # An error of another process, which would otherwise arrive as the text of a traceback.
    what: str
    where: str
    remedy: str


class _Requests(Dataset[Any]):
    # A data set whose indices are requests, so that each worker of a DataLoader reads whole shares.

    def __init__(self, readers: Mapping[int, ShareReader]) -> None:
        self._readers = readers

    def __getitem__(self, index: BatchRequest) -> "BatchShare | _Refused":
        try:
            with seeded(0):
                return self._readers[len(index.samples)].read(index)
        except InvalidInput as error:
            return _Refused(error.what, error.where, error.remedy)


def read_shares(
    readers: Mapping[int, ShareReader], requests: Iterable[BatchRequest], *, workers: int, prefetch: int
) -> Iterator[BatchShare]:
    """Yield the shares of mini-batches, in order.

    Args:
        readers: by the size of a mini-batch.
        requests: the mini-batches, maybe without an end. They are drawn as far ahead as the workers read.
        workers: processes that read ahead. 0 reads in this process, when a share is asked for.
        prefetch: shares that each worker reads ahead.

    Raises:
        InvalidInput: as `ShareReader.read`.
    """
    if not any(reader.groups for reader in readers.values()):
        for request in requests:  # Nothing is read here.
            yield BatchShare(samples=request.samples, inputs={})
        return
    loader: DataLoader[Any] = DataLoader(
        _Requests(readers),
        batch_size=None,
        sampler=requests,  # pyright: ignore[reportArgumentType]
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        collate_fn=_as_it_is,
        worker_init_fn=_leave_connections,
        generator=torch.Generator(),  # The process-wide one would be drawn from.
    )
    for found in loader:
        if isinstance(found, _Refused):
            raise InvalidInput(found.what, where=found.where, remedy=found.remedy)
        yield found


def _leave_connections(_: int) -> None:
    # A fork inherits its rank's connections to other ranks. They must close when the rank closes them, or is killed.
    for name in os.listdir(_OPEN_FILES) if os.path.isdir(_OPEN_FILES) else ():
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                family = connection.family
            if family in (socket.AF_INET, socket.AF_INET6):
                os.close(int(name))


def _as_it_is(share: Any) -> Any:
    return share
