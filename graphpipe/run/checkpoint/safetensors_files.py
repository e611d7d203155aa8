"""Named tensors to safetensors files and back."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from graphpipe.errors import CheckpointCorrupt
from graphpipe.run.checkpoint.manifest import TensorEntry
from graphpipe.run.tensor_files.tensor_file import Seen, forms_of, unseen, write_file


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in the files of a checkpoint: `float32`."""
    return str(dtype).removeprefix("torch.")


def cpu_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies of the tensors on the CPU, which share memory with no other tensor."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def write_tensors(path: Path, tensors: Mapping[str, Tensor], seen: Seen = unseen) -> dict[str, TensorEntry]:
    """Write tensors to a file, one at a time, and return their entries for the manifest.

    Args:
        path: of the file.
        tensors: by name.
        seen: called with all bytes.

    Raises:
        InvalidInput: the format cannot hold a tensor's dtype.
        OSError: the file cannot be written.
    """
    write_file(path, forms_of(tensors), tensors.values(), seen)
    return {
        name: TensorEntry(file=path.name, dtype=dtype_name(tensor.dtype), shape=tuple(tensor.shape))
        for name, tensor in tensors.items()
    }


def read_tensors(checkpoint: Path, entries: Mapping[str, TensorEntry]) -> dict[str, Tensor]:
    """Return these tensors of a checkpoint. Other tensors are not read.

    Raises:
        CheckpointCorrupt: a file is not a safetensors file, or a tensor in it is not what the manifest says.
    """
    by_file: defaultdict[str, list[str]] = defaultdict(list)
    for name, entry in entries.items():
        by_file[entry.file].append(name)
    tensors: dict[str, Tensor] = {}
    for file, names in by_file.items():
        try:
            with safe_open(checkpoint / file, framework="pt") as reader:
                tensors |= {name: reader.get_tensor(name) for name in names}
        except (SafetensorError, OSError) as error:
            raise CheckpointCorrupt(f"cannot be read: {error}", where=str(checkpoint / file)) from None
        for name in sorted(names):  # The same one is named every time.
            _check(tensors[name], entries[name], f"{checkpoint / file}, tensor '{name}'")
    return tensors


def _check(tensor: Tensor, entry: TensorEntry, where: str) -> None:
    shape, dtype = tuple(tensor.shape), dtype_name(tensor.dtype)
    if (shape, dtype) != (entry.shape, entry.dtype):
        raise CheckpointCorrupt(
            f"is {dtype}{list(shape)}, the manifest says {entry.dtype}{list(entry.shape)}", where=where
        )
