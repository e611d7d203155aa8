"""Reads tensors of a checkpoint of torch.distributed.checkpoint (DCP), of which a rank reads the blocks it needs."""

import io
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from graphpipe.errors import CheckpointCorrupt
from graphpipe.graph import ParameterSlice
from graphpipe.run.sources.dcp_metadata import DcpChunk, read_dcp_metadata


@final
class DcpReader:
    """Tensors of the folder that `torch.distributed.checkpoint.save` has written.

    Args:
        path: the folder.

    Raises:
        InvalidInput: its list of tensors cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors = read_dcp_metadata(path)

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._tensors.keys()

    def file_of(self, name: str) -> Path:
        """Return the file that holds the first block of a tensor."""
        chunks = self._tensors[name].chunks
        return self.path / chunks[0].file if chunks else self.path

    def form(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and the dtype of a whole tensor."""
        return self._tensors[name].shape, self._tensors[name].dtype

    def read(self, name: str, piece: ParameterSlice | None) -> Tensor:
        """Return a tensor, or a slice of it, from the blocks that have a part in it."""
        tensor = self._tensors[name]
        first, last = [0] * len(tensor.shape), list(tensor.shape)
        if piece is not None:
            first[piece.dimension], last[piece.dimension] = piece.start, piece.stop
        result = torch.empty([end - start for start, end in zip(first, last, strict=True)], dtype=tensor.dtype)
        filled = 0
        for chunk in tensor.chunks:
            starts = [max(*pair) for pair in zip(first, chunk.offsets, strict=True)]
            ends = [min(end, offset + size) for end, offset, size in zip(last, chunk.offsets, chunk.sizes, strict=True)]
            if all(start < end for start, end in zip(starts, ends, strict=True)):
                block = self._block(name, chunk)[_ranges(starts, ends, chunk.offsets)]
                result[_ranges(starts, ends, first)] = block
                filled += block.numel()
        if filled != result.numel():
            what = f"has {filled} of {result.numel()} elements of '{name}'"
            raise CheckpointCorrupt(what, where=str(self.path))
        return result

    def reading(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: files are opened for each block."""
        return nullcontext()

    def _block(self, name: str, chunk: DcpChunk) -> Tensor:
        path = self.path / chunk.file
        try:
            with path.open("rb") as file:
                file.seek(chunk.start)
                found = torch.load(io.BytesIO(file.read(chunk.length)), weights_only=True, map_location="cpu")
        except OSError as error:
            raise CheckpointCorrupt(f"cannot be read: {error.strerror}", where=str(path)) from None
        except Exception as error:  # of a damaged archive; nothing but tensors is made of it
            raise CheckpointCorrupt(f"'{name}' cannot be read: {error}", where=str(path)) from None
        if not isinstance(found, Tensor) or tuple(found.shape) != chunk.sizes:
            raise CheckpointCorrupt(f"does not hold the block of '{name}' that it should", where=str(path))
        return found


def _ranges(starts: list[int], ends: list[int], origin: Collection[int]) -> tuple[slice, ...]:
    return tuple(slice(start - base, end - base) for start, end, base in zip(starts, ends, origin, strict=True))
