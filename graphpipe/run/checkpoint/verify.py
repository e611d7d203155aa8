"""How a damaged checkpoint is found: every file is compared with the manifest, and every JSON document is parsed."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from graphpipe.errors import CheckpointCorrupt
from graphpipe.run.checkpoint.manifest import MANIFEST, PLAN, TRAINING, FileEntry, Manifest, regular_file_size
from graphpipe.run.checkpoint.optimizer_state import read_optimizer_states
from graphpipe.run.checkpoint.training_state import TrainingState

_NAMED = re.compile(r"step-(\d+)")


def verify_weights(checkpoint: Path) -> Manifest:
    """Do as `verify_files`, but of the optimizer's tensors, which may be most of the bytes, only check the sizes."""
    return verify_files(checkpoint, slots=False)


def verify_files(checkpoint: Path, *, slots: bool = True) -> Manifest:
    """Read every file of a checkpoint, and return its manifest if each file is what was written.

    Args:
        checkpoint: its folder.
        slots: read the files that hold nothing but tensors of the optimizer too.

    Raises:
        CheckpointCorrupt: names the file that is missing, shorter, longer, changed or a link, or the folder if that is
            a link.
    """
    if checkpoint.is_symlink():
        raise CheckpointCorrupt("is a link to another folder", where=str(checkpoint))
    manifest = Manifest.load(checkpoint / MANIFEST)
    for alias, name in manifest.aliases.items():
        if name not in manifest.tensors:
            what = f"does not list tensor '{name}', which is also called '{alias}'"
            raise CheckpointCorrupt(what, where=str(checkpoint / MANIFEST))
    of_slots = {entry.file for entry in manifest.slots.values()} - {entry.file for entry in manifest.tensors.values()}
    read = manifest.files.keys() - (set[str]() if slots else of_slots)
    for name, entry in manifest.files.items():
        verify_size(checkpoint / name, entry)
    with ThreadPoolExecutor() as pool:
        list(pool.map(_verify_file, (checkpoint / name for name in read), (manifest.files[name] for name in read)))
    return manifest


def verify_resumable(checkpoint: Path) -> Manifest:
    """Return the manifest of a checkpoint if its files are what was written and training can resume from them.

    Raises:
        CheckpointCorrupt: names the damaged file, or a checkpoint of another step than its name says.
    """
    manifest = verify_files(checkpoint)
    for name in (TRAINING, PLAN):
        if name not in manifest.files:
            raise CheckpointCorrupt(f"does not list {name}", where=str(checkpoint / MANIFEST))
    step = TrainingState.load(checkpoint / TRAINING).step
    if (named := _NAMED.match(checkpoint.name)) and int(named[1]) != step:
        raise CheckpointCorrupt(
            f"holds step {step}, but its name says step {int(named[1])}",
            where=str(checkpoint),
            remedy=f"It was renamed. Its name was step-{step:08}.",
        )
    read_optimizer_states(checkpoint, manifest)
    return manifest


def verify_size(path: Path, wanted: FileEntry) -> None:
    """Check that a file has as many bytes as were written.

    Raises:
        CheckpointCorrupt: it has not, or it is missing or a link.
    """
    if (size := regular_file_size(path)) != wanted.bytes:
        raise CheckpointCorrupt(f"holds {size} bytes, the manifest says {wanted.bytes}", where=str(path))


def _verify_file(path: Path, wanted: FileEntry) -> None:
    try:
        entry = FileEntry.of(path)
    except OSError as error:
        raise CheckpointCorrupt(f"cannot be read: {error.strerror}", where=str(path)) from None
    if entry.sha256 != wanted.sha256:
        raise CheckpointCorrupt(
            f"is not what was written: SHA-256 {entry.sha256[:12]}, the manifest says {wanted.sha256[:12]}",
            where=str(path),
        )
