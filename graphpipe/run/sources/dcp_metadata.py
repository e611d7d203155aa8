"""The list of tensors of a checkpoint of torch.distributed.checkpoint (DCP), whose `.metadata` is a pickle.

A pickle can run any code of its writer. This reader makes records without behaviour of the few classes that the format
has, and refuses every other name, so nothing runs.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from graphpipe.errors import InvalidInput

METADATA = ".metadata"
_METADATA = "torch.distributed.checkpoint.metadata"
_RECORDS = {
    *((_METADATA, name) for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties")),
    *((_METADATA, name) for name in ("ChunkStorageMetadata", "MetadataIndex", "StorageMeta")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
}


def _joined(*parts: str) -> str:
    return "/".join(parts)


_VALUES: dict[tuple[str, str], Callable[..., object]] = {
    ("torch", "Size"): tuple,
    ("torch.serialization", "_get_layout"): str,
    (_METADATA, "_MEM_FORMAT_ENCODING"): int,
    ("pathlib", "PosixPath"): _joined,
    ("pathlib", "WindowsPath"): _joined,
    ("collections", "OrderedDict"): dict,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpChunk:
    """A block of a tensor, and where its bytes are."""

    offsets: tuple[int, ...]
    """The first index of the block in each dimension."""
    sizes: tuple[int, ...]
    file: str
    start: int
    """The first byte in the file."""
    length: int
    """Bytes in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpTensor:
    """A tensor of the checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[DcpChunk, ...]


def read_dcp_metadata(folder: Path) -> dict[str, DcpTensor]:
    """Return the tensors of a checkpoint by name.

    Raises:
        InvalidInput: the file cannot be read, is not of this format, or names a file outside its folder.
    """
    path = folder / METADATA
    try:
        with path.open("rb") as file:
            loaded: Any = _Inert(file).load()
        entries: dict[Any, Any] = loaded.storage_data
        storage = {(key.fqn, tuple(getattr(key, "offset", None) or ())): info for key, info in entries.items()}
        return {
            name: _tensor(name, entry, storage)
            for name, entry in loaded.state_dict_metadata.items()
            if isinstance(entry, _Record) and entry.kind == "TensorStorageMetadata"
        }
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", where=str(path)) from None
    except InvalidInput as error:
        raise InvalidInput(error.what, where=str(path), remedy=error.remedy) from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        what = f"is not the list of a checkpoint of torch.distributed.checkpoint: {type(error).__name__}: {error}"
        raise InvalidInput(what, where=str(path)) from None


def _tensor(name: str, entry: Any, storage: dict[tuple[str, tuple[int, ...]], Any]) -> DcpTensor:
    chunks: list[DcpChunk] = []
    for chunk in entry.chunks:
        offsets, sizes = tuple(map(int, chunk.offsets)), tuple(map(int, chunk.sizes))
        info = storage.get((name, offsets)) or storage[name, ()]
        file = str(info.relative_path)
        if Path(file).name != file:
            raise InvalidInput(f"names the file '{file}', which is not in its folder")
        if getattr(info, "transform_descriptors", None):
            raise InvalidInput(f"'{name}' was compressed, which is not read", remedy="Save it without transforms.")
        chunks.append(
            DcpChunk(offsets=offsets, sizes=sizes, file=file, start=int(info.offset), length=int(info.length))
        )
    dtype = entry.properties.dtype
    return DcpTensor(shape=tuple(map(int, entry.size)), dtype=dtype, chunks=tuple(chunks))


class _Record:
    """Stands for an instance of a class of the format."""

    kind: str = ""

    def __setstate__(self, state: Any) -> None:
        # Of dataclasses, frozen or not; TensorProperties has a state of its own, in the order of its fields.
        if isinstance(state, tuple) and self.kind == "TensorProperties":
            self.dtype = state[0]
        elif isinstance(state, dict):
            vars(self).update({str(key): value for key, value in state.items() if key != "kind"})

    def __hash__(self) -> int:
        return hash((getattr(self, "fqn", ""), getattr(self, "offset", None)))

    def __eq__(self, other: object) -> bool:
        return self is other


@final
class _Inert(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return what stands for a name of the format, and refuse all other names."""
        key = (module_name, global_name)
        if key in _RECORDS:
            return type(global_name, (_Record,), {"kind": global_name})
        if key in _VALUES:
            return _VALUES[key]
        found = getattr(torch, global_name, None) if module_name == "torch" else None
        if isinstance(found, torch.dtype):
            return found
        raise InvalidInput(
            f"contains {module_name}.{global_name}, which this format does not have",
            remedy="It may run code: use it only if you trust its writer, by converting it to safetensors yourself.",
        )
