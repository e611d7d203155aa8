"""The manifest of a checkpoint: every file with its SHA-256, every tensor with its file. It is written last.

step-00000012/
  model-00.safetensors, model-01.safetensors     parameters and buffers by name in the model, a file per rank
  optimizer-00.safetensors, optimizer-00.json    what the optimizer keeps for each parameter
  training.json, plan.json                       step, position in the data, random numbers; the plan
  manifest.json                                  a folder without it is no checkpoint
"""

import hashlib
import re
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ConfigDict

from graphpipe.errors import CheckpointCorrupt, InvalidInput
from graphpipe.files.json_document import fingerprint, from_body, read_document, write_document

MANIFEST = "manifest.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Of a file in a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file of a checkpoint."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """A tensor in one of the files."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    file: str
    dtype: str
    """As torch names it: `float32`."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What is in a checkpoint, or in one rank's part of it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    files: dict[str, FileEntry] = field(default_factory=dict[str, FileEntry])
    tensors: dict[str, TensorEntry] = field(default_factory=dict[str, TensorEntry])
    """Of the model, by name."""
    slots: dict[str, TensorEntry] = field(default_factory=dict[str, TensorEntry])
    """Of the optimizer, by `parameter:slot`."""
    aliases: dict[str, str] = field(default_factory=dict[str, str])
    """Further names of tied tensors, and the name they are saved under."""

    @staticmethod
    def union(parts: Iterable["Contents"]) -> "Contents":
        """Return what several ranks have written."""
        whole = Contents()
        for part in parts:
            for name in ("files", "tensors", "slots", "aliases"):
                together, own = getattr(whole, name), getattr(part, name)
                assert together.keys().isdisjoint(own), "two ranks saved the same"
                together.update(own)
        return whole

    def save(self, path: Path) -> None:
        """Write a manifest, with a hash of itself inside."""
        write_document(path, "checkpoint", _Manifest(sha256=fingerprint(self), contents=self))

    @staticmethod
    def load(path: Path) -> "Contents":
        """Read a manifest.

        Raises:
            CheckpointCorrupt: it is missing or damaged, or names files outside its folder.
        """
        _size(path)
        try:
            found = read_document(path, "checkpoint", lambda body: from_body(_Manifest, body, str(path)))
        except InvalidInput as error:
            raise CheckpointCorrupt(error.what, where=error.where) from None
        contents = found.contents
        if fingerprint(contents) != found.sha256:
            raise CheckpointCorrupt("is not what was written: its hash is another", where=str(path))
        for name in contents.files:
            if _NAME.fullmatch(name) is None:
                raise CheckpointCorrupt(f"names {name!r}, which is not in its folder", where=str(path))
        for name, entry in [*contents.tensors.items(), *contents.slots.items()]:
            if entry.file not in contents.files:
                raise CheckpointCorrupt(f"has no file '{entry.file}' of tensor '{name}'", where=str(path))
        return contents


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    __pydantic_config__ = ConfigDict(extra="forbid")

    sha256: str
    contents: Contents


def measure(path: Path) -> FileEntry:
    """Return what the manifest has to say of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(bytes=path.stat().st_size, sha256=digest)


def verify_checkpoint(checkpoint: Path) -> Contents:
    """Read every file of a checkpoint, and return its contents if all is as it was written.

    Raises:
        CheckpointCorrupt: names the file that is missing, shorter, longer, changed or a link; or the folder, if it is a
            link.
    """
    if checkpoint.is_symlink():
        raise CheckpointCorrupt("is a link to another folder", where=str(checkpoint))
    contents = Contents.load(checkpoint / MANIFEST)
    for alias, name in contents.aliases.items():
        if name not in contents.tensors:
            what = f"has no tensor '{name}', of which '{alias}' is another name"
            raise CheckpointCorrupt(what, where=str(checkpoint / MANIFEST))
    with ThreadPoolExecutor() as pool:
        list(pool.map(_check, (checkpoint / name for name in contents.files), contents.files.values()))
    return contents


def _check(path: Path, wanted: FileEntry) -> None:
    if (size := _size(path)) != wanted.bytes:
        raise CheckpointCorrupt(f"holds {size} bytes, the manifest says {wanted.bytes}", where=str(path))
    try:
        found = measure(path)
    except OSError as error:
        raise CheckpointCorrupt(f"cannot be read: {error.strerror}", where=str(path)) from None
    if found.sha256 != wanted.sha256:
        raise CheckpointCorrupt(
            f"is not what was written: SHA-256 {found.sha256[:12]}, the manifest says {wanted.sha256[:12]}",
            where=str(path),
        )


def _size(path: Path) -> int:
    # No link is followed: what is written here is a file itself.
    try:
        found = path.lstat()
    except OSError as error:
        raise CheckpointCorrupt(f"cannot be read: {error.strerror}", where=str(path)) from None
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointCorrupt("is a link, or something else that is no file", where=str(path))
    return found.st_size
