"""The manifest of a checkpoint, its index: every file with its SHA-256, every tensor with its file. Written last."""

import hashlib
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import ConfigDict

from graphpipe.errors import CheckpointCorrupt, InvalidInput
from graphpipe.files.json_body import fingerprint, from_body
from graphpipe.files.json_document import read_document, write_document

MANIFEST, TRAINING, PLAN = "manifest.json", "training.json", "plan.json"
"""The files of a checkpoint that only rank 0 writes."""
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A file in the checkpoint's own folder."""
Document = TypeVar("Document")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file of a checkpoint."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    bytes: int
    sha256: str

    @staticmethod
    def of(path: Path) -> "FileEntry":
        """Return the size and the SHA-256 of a file."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(bytes=path.stat().st_size, sha256=digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """A tensor in one of the files."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    file: str
    dtype: str
    """The dtype in torch's words, such as `float32`."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The index of a checkpoint, or of the part that one rank has written: its files and its tensors."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    files: dict[str, FileEntry] = field(default_factory=dict[str, FileEntry])
    tensors: dict[str, TensorEntry] = field(default_factory=dict[str, TensorEntry])
    """Tensors of the model, by name."""
    slots: dict[str, TensorEntry] = field(default_factory=dict[str, TensorEntry])
    """Tensors of the optimizer's state, by `parameter:slot`."""
    aliases: dict[str, str] = field(default_factory=dict[str, str])
    """The other names of tied tensors, and the name under which each is saved."""

    @staticmethod
    def union(parts: Iterable["Manifest"]) -> "Manifest":
        """Return the manifest of what several ranks have written."""
        whole = Manifest()
        for part in parts:
            for name in ("files", "tensors", "slots", "aliases"):
                merged, own = getattr(whole, name), getattr(part, name)
                assert merged.keys().isdisjoint(own), "two ranks saved the same name"
                merged.update(own)
        return whole

    def save(self, path: Path) -> None:
        """Write the manifest, with a hash of its own content."""
        write_document(path, "checkpoint", _HashedManifest(sha256=fingerprint(self), contents=self))

    @staticmethod
    def load(path: Path) -> "Manifest":
        """Read a manifest.

        Raises:
            CheckpointCorrupt: it is missing or damaged, or names files outside its folder.
        """
        regular_file_size(path)
        document = read_checkpoint_document(_HashedManifest, "checkpoint", path)
        manifest = document.contents
        if fingerprint(manifest) != document.sha256:
            raise CheckpointCorrupt("is not what was written: its hash differs", where=str(path))
        for name in manifest.files:
            if _FILE_NAME.fullmatch(name) is None:
                raise CheckpointCorrupt(f"names {name!r}, which is not in its folder", where=str(path))
        for name, entry in [*manifest.tensors.items(), *manifest.slots.items()]:
            if entry.file not in manifest.files:
                raise CheckpointCorrupt(f"does not list the file '{entry.file}' of tensor '{name}'", where=str(path))
        return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class _HashedManifest:
    # The body of manifest.json.
    __pydantic_config__ = ConfigDict(extra="forbid")

    sha256: str
    contents: Manifest


def read_checkpoint_document(kind: type[Document], name: str, path: Path) -> Document:
    """Return the value of type `kind` in a JSON document of a checkpoint.

    Args:
        kind: a dataclass.
        name: the kind of document in the file's head.
        path: the file.

    Raises:
        CheckpointCorrupt: it cannot be read, or does not describe such a value.
    """
    try:
        return read_document(path, name, lambda body: from_body(kind, body, str(path)))
    except InvalidInput as error:
        raise CheckpointCorrupt(error.what, where=error.where) from None


def regular_file_size(path: Path) -> int:
    """Return the bytes of a file. Links are not followed, because a checkpoint is saved as regular files only.

    Raises:
        CheckpointCorrupt: it is missing, or not a regular file.
    """
    try:
        status = path.lstat()
    except OSError as error:
        raise CheckpointCorrupt(f"cannot be read: {error.strerror}", where=str(path)) from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointCorrupt("is a link, or something else that is not a regular file", where=str(path))
    return status.st_size
