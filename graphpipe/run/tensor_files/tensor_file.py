"""Writes a safetensors file tensor by tensor, so that nobody holds more than one tensor for it.

The package `safetensors` writes a file at once, from tensors that are all in the memory of the host. The format is a
length (8 bytes), a JSON object with dtype, shape and place of every tensor, and their bytes.
"""

import json
import math
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, final

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.files.permissions import with_usual_permissions

FORMAT_DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
    **{"BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64},
    **{"U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64},
}
"""The dtypes of the format by their names in it."""
_NAMES = {dtype: name for name, dtype in FORMAT_DTYPES.items()}
_ALIGNMENT = 8
Form = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a tensor."""
Seen = Callable[[bytes | memoryview], object]
"""Is called with all bytes of a file, in the order in which they are written, such as the `update` of a hash."""


def unseen(part: bytes | memoryview) -> None:
    """Do nothing with bytes that are written."""


@final
class TensorFile:
    """An open file, to which the tensors are added in the order in which they were announced."""

    def __init__(self, file: IO[bytes], forms: Mapping[str, Form], seen: Seen) -> None:
        self._file, self._waiting, self._seen = file, iter(forms.items()), seen

    def add(self, name: str, tensor: Tensor) -> None:
        """Write the next tensor, which may be on any device and need not be contiguous.

        Raises:
            OSError: the file cannot be written.
        """
        announced, (shape, dtype) = next(self._waiting)
        assert (name, tuple(tensor.shape), tensor.dtype) == (announced, shape, dtype), f"{name} after {announced}"
        own = tensor.detach().to("cpu", memory_format=torch.contiguous_format).reshape(-1)
        if own.numel():
            values = own.view(torch.uint8).numpy().data
            self._file.write(values)
            self._seen(values)

    def finish(self) -> None:
        """Check that every announced tensor was written."""
        assert next(self._waiting, None) is None, "a tensor is missing"


@contextmanager
def tensor_file(path: Path, forms: Mapping[str, Form], seen: Seen = unseen) -> Generator[TensorFile]:
    """Open a file for tensors of these names, shapes and dtypes, which the block adds in this order.

    Args:
        path: of the file.
        forms: of the tensors.
        seen: called with all bytes.

    Raises:
        InvalidInput: the format cannot hold a dtype.
        OSError: the file cannot be written.
    """
    head = json.dumps(_head(path, forms), separators=(",", ":")).encode()
    head += b" " * (-len(head) % _ALIGNMENT)
    head = len(head).to_bytes(8, "little") + head
    try:
        with with_usual_permissions(path), path.open("wb") as file:
            file.write(head)
            seen(head)
            opened = TensorFile(file, forms, seen)
            yield opened
            opened.finish()
    except OSError as error:  # of a write, which does not name the file
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_file(path: Path, forms: Mapping[str, Form], tensors: Iterable[Tensor], seen: Seen = unseen) -> None:
    """Write the tensors of these names, which are taken one at a time.

    Args:
        path: of the file.
        forms: of the tensors.
        tensors: in the same order.
        seen: called with all bytes.

    Raises:
        InvalidInput: the format cannot hold a dtype.
        OSError: the file cannot be written.
    """
    with tensor_file(path, forms, seen) as file:
        for name, tensor in zip(forms, tensors, strict=True):
            file.add(name, tensor)


def forms_of(tensors: Mapping[str, Tensor]) -> dict[str, Form]:
    """Return the shapes and dtypes of tensors."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def form_bytes(form: Form) -> int:
    """Return the bytes of a tensor of this shape and dtype."""
    shape, dtype = form
    return math.prod(shape) * dtype.itemsize


def _head(path: Path, forms: Mapping[str, Form]) -> dict[str, object]:
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, (shape, dtype) in forms.items():
        if dtype not in _NAMES:
            raise InvalidInput(f"a safetensors file cannot hold {dtype}", where=str(path))
        end = place + form_bytes((shape, dtype))
        head[name] = {"dtype": _NAMES[dtype], "shape": [*shape], "data_offsets": [place, end]}
        place = end
    return head
