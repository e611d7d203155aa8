"""The interface of a reader of tensors by name, one for each format of files."""

from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from graphpipe.graph import ParameterSlice


class TensorReader(Protocol):
    """Reads single tensors of some files. Nothing but their list of names is read before."""

    @property
    def path(self) -> Path:
        """The file or the folder."""
        ...

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        ...

    def file_of(self, name: str) -> Path:
        """Return the file that holds a tensor, for errors and for the order of reading."""
        ...

    def form(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and the dtype of a whole tensor.

        Raises:
            InvalidInput, CheckpointCorrupt: the file cannot be read.
        """
        ...

    def read(self, name: str, piece: ParameterSlice | None) -> Tensor:
        """Return a tensor, or a slice of it, without reading the rest.

        Raises:
            InvalidInput, CheckpointCorrupt: the file cannot be read.
        """
        ...

    def reading(self) -> AbstractContextManager[None]:
        """Return a context in which files may stay open between tensors."""
        ...
