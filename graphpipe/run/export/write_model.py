"""The tensors of a reader as one safetensors file, or as several with an index that `transformers` reads."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from graphpipe.files.text_file import write_text
from graphpipe.run.checkpoint.folder import sync_to_disk
from graphpipe.run.comm.collective_calls import unusable_file
from graphpipe.run.sources.safetensors_reader import INDEX, SINGLE
from graphpipe.run.sources.tensor_reader import TensorReader
from graphpipe.run.tensor_files.tensor_file import Form, form_bytes, write_file

SHARD_BYTES = 5 * 10**9
"""The largest file of a folder, unless a tensor is larger."""


def write_model_file(reader: TensorReader, output: Path) -> None:
    """Write all tensors to one file, which appears complete or not at all.

    Raises:
        InvalidInput: the file cannot be written, or a tensor cannot be read.
        CheckpointCorrupt: a checkpoint is damaged.
    """
    _write(reader, output, _forms(reader))


def write_model_folder(reader: TensorReader, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write all tensors to a folder: one file, or several with an index, which is written last.

    Args:
        reader: of the tensors.
        folder: made if it is not there. Other files in it stay.
        shard_bytes: the size that a file does not exceed, unless a tensor does.

    Raises:
        InvalidInput, CheckpointCorrupt: as `write_model_file`.
    """
    shards = _shards(_forms(reader), shard_bytes)
    for stale in (folder / INDEX, folder / SINGLE):  # The index that is found must be that of these files.
        stale.unlink(missing_ok=True)
    if len(shards) == 1:
        _write(reader, folder / SINGLE, shards[0])
        return
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for name, forms in zip(names, shards, strict=True):
        _write(reader, folder / name, forms)
    total = sum(form_bytes(form) for forms in shards for form in forms.values())
    where = {tensor: name for name, forms in zip(names, shards, strict=True) for tensor in forms}
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    write_text(folder / INDEX, json.dumps(content, indent=2) + "\n")


def model_bytes(reader: TensorReader) -> int:
    """Return the bytes of all tensors."""
    return sum(form_bytes(form) for form in _forms(reader).values())


def _forms(reader: TensorReader) -> dict[str, Form]:
    with reader.reading():
        return {name: reader.form(name) for name in sorted(reader.names)}


def _shards(forms: Mapping[str, Form], limit: int) -> list[dict[str, Form]]:
    shards: list[dict[str, Form]] = [{}]
    filled = 0
    for name, form in forms.items():
        if shards[-1] and filled + form_bytes(form) > limit:
            shards.append({})
            filled = 0
        shards[-1][name] = form
        filled += form_bytes(form)
    return shards


def _write(reader: TensorReader, output: Path, forms: Mapping[str, Form]) -> None:
    part = output.with_name(f"{output.name}.part")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with reader.reading():
            write_file(part, forms, _tensors(reader, forms))
        sync_to_disk(part)
        os.replace(part, output)
    except OSError as error:
        raise unusable_file(error) from None


def _tensors(reader: TensorReader, forms: Mapping[str, Form]) -> Iterator[Tensor]:
    for name in forms:
        yield reader.read(name, None)
