"""Reads tensors of a safetensors file, or of a folder of them with an index as Hugging Face writes it."""

from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.files.json_document import read_json
from graphpipe.graph import ParameterSlice
from graphpipe.run.tensor_files.tensor_file import FORMAT_DTYPES

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
"""The names that Hugging Face gives an index, and the file of a model that has only one."""
_MOST_OPEN = 8


@final
class SafetensorsReader:
    """Tensors of one file, or of the files of an index.

    Args:
        path: the file, the index, or a folder with either of them.

    Raises:
        InvalidInput: it cannot be read, or the index names a file outside its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[Path, Any] = {}
        self._stack: ExitStack | None = None
        index = path / INDEX if (path / INDEX).is_file() else path
        if index.suffix == ".json":
            self._files = _of_index(index)
        else:
            file = path / SINGLE if path.is_dir() else path
            with self.reading():
                self._files = dict.fromkeys(self._reader(file).keys(), file)

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._files.keys()

    def file_of(self, name: str) -> Path:
        """Return the file that holds a tensor."""
        return self._files[name]

    def form(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and the dtype of a whole tensor."""
        part = self._slice(name)
        dtype = FORMAT_DTYPES.get(part.get_dtype())
        if dtype is None:
            raise InvalidInput(f"'{name}' is {part.get_dtype()}, which is not read", where=str(self._files[name]))
        return tuple(part.get_shape()), dtype

    def read(self, name: str, piece: ParameterSlice | None) -> Tensor:
        """Return a tensor, or a slice of it."""
        if piece is None:
            return self._tensor(name)
        rows = slice(piece.start, piece.stop)
        return self._slice(name)[(*[slice(None)] * piece.dimension, rows)]

    @contextmanager
    def reading(self) -> Generator[None]:
        """While inside, files stay open."""
        with ExitStack() as stack:
            self._stack = stack
            try:
                yield
            finally:
                self._stack = None
                self._open.clear()

    def _tensor(self, name: str) -> Tensor:
        try:
            return self._reader(self._files[name]).get_tensor(name)
        except SafetensorError as error:
            raise _unreadable(self._files[name], error) from None

    def _slice(self, name: str) -> Any:
        try:
            return self._reader(self._files[name]).get_slice(name)
        except SafetensorError as error:
            raise _unreadable(self._files[name], error) from None

    def _reader(self, file: Path) -> Any:
        assert self._stack is not None
        if file not in self._open:
            if len(self._open) >= _MOST_OPEN:
                self._open.clear()
                self._stack.close()
            try:
                self._open[file] = self._stack.enter_context(safe_open(file, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise _unreadable(file, error) from None
        return self._open[file]


def _of_index(index: Path) -> dict[str, Path]:
    content = read_json(index)
    files: object = content.get("weight_map") if isinstance(content, Mapping) else None
    if not isinstance(files, Mapping) or not all(isinstance(each, str) for each in (*files, *files.values())):
        raise InvalidInput("has no 'weight_map' from names to files", where=str(index))
    for file in files.values():
        if Path(file).name != file:
            raise InvalidInput(f"names the file '{file}', which is not in its folder", where=str(index))
    return {name: index.parent / file for name, file in files.items()}


def _unreadable(file: Path, error: Exception) -> InvalidInput:
    text = getattr(error, "strerror", None) or " ".join(str(error).split())
    return InvalidInput(f"cannot be read: {text}", where=str(file), remedy="Copy or download it again.")
