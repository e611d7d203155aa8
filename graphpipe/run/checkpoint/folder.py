"""A folder of checkpoints: a new one appears whole or not at all, and the last good one is always there.

step-00000010/          the one before
step-00000020/          the last
step-00000030.part/     being written; renamed once its manifest is on the disk
"""

import os
import re
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from graphpipe.errors import CheckpointCorrupt, InvalidInput
from graphpipe.run.checkpoint.manifest import MANIFEST, Contents, verify_checkpoint

# A checkpoint of the same step is put aside while its successor takes its name.
_NAME = re.compile(r"step-(\d{8,})(\.replaced)?")


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that has been verified."""

    path: Path
    contents: Contents
    newer: tuple[Path, ...]
    """Checkpoints of later steps, which are damaged."""


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, good or not, the newest first."""
    names = [(match, path) for path in folder.glob("step-*") if (match := _NAME.fullmatch(path.name))]
    # Names in full come before those put aside.
    ranked = sorted(names, key=lambda each: (-int(each[0][1]), each[0][2] is not None))
    return [path for _, path in ranked]


def find(folder: Path, verify: Callable[[Path], Contents] = verify_checkpoint) -> Found:
    """Return the newest good checkpoint of a folder; a damaged one is passed over with a warning.

    Args:
        folder: of checkpoints.
        verify: returns what is in a good one, and raises CheckpointCorrupt for another.

    Raises:
        InvalidInput: there is none.
        CheckpointCorrupt: there are some, all damaged; names what is wrong with the newest.
    """
    problems: list[tuple[Path, CheckpointCorrupt]] = []
    for path in checkpoints_in(folder):
        try:
            contents = verify(path)
        except CheckpointCorrupt as error:
            problems.append((path, error))
            continue
        for _, error in problems:
            warnings.warn(f"{error}. Using the checkpoint before it: {path}", stacklevel=2)
        return Found(path, contents, tuple(path for path, _ in problems))
    if problems:
        first = problems[0][1]
        remedy = f"None of the {len(problems)} checkpoints can be used: train anew."
        raise CheckpointCorrupt(first.what, where=first.where, remedy=remedy)
    raise InvalidInput(
        "holds no checkpoint", where=str(folder), remedy="Checkpoints are made with train.checkpoint_every=STEPS."
    )


def begin(folder: Path, step: int) -> Path:
    """Make the folder that a checkpoint is written into, clear of what an interrupted one left behind.

    Raises:
        InvalidInput: there is a checkpoint of a later step: another training's.
        OSError: it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    existing = checkpoints_in(folder)
    if existing and _step(existing[0]) > step:
        raise InvalidInput(
            f"holds a checkpoint of step {_step(existing[0])}, this one is of step {step}",
            where=str(folder),
            remedy="Load that checkpoint before training on, or choose another folder.",
        )
    for leftover in folder.glob("step-*.part"):
        _delete(leftover)
    part = folder / f"step-{step:08}.part"
    part.mkdir()
    return part


def commit(part: Path, contents: Contents, keep: int) -> Path:
    """Make a checkpoint of what has been written, and remove the oldest beyond `keep`; return its path.

    Every byte is on the disk before the name is: a power failure loses no more than a kill.
    """
    contents.save(part / MANIFEST)
    sync(part / MANIFEST)
    sync(part)
    final = part.with_suffix("")
    aside = final.with_name(f"{final.name}.replaced")
    if final.exists():
        _remove(aside)
        final.rename(aside)
    part.rename(final)
    sync(final.parent)
    _remove(aside)
    for old in checkpoints_in(final.parent)[keep:]:
        _remove(old)
    return final


def set_aside(damaged: Path) -> None:
    """Rename a damaged checkpoint, so that training goes on from an earlier one; nothing is deleted.

    Where nothing can be renamed, as on a disk that is read-only, it stays, and is passed over once more.
    """
    for number in range(1, 1000):
        target = damaged.with_name(f"{damaged.name}.damaged-{number}")
        if not target.exists():
            with suppress(OSError):
                damaged.rename(target)
            return


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(checkpoint: Path) -> None:
    # First its name goes, so that no half of it is ever taken for a checkpoint.
    if os.path.lexists(checkpoint):
        doomed = checkpoint.with_name(f"{checkpoint.name}.old.part")
        checkpoint.rename(doomed)
        _delete(doomed)


def _delete(path: Path) -> None:
    # What is not ours may have a checkpoint's name: of a link only the link goes.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _step(checkpoint: Path) -> int:
    match = _NAME.fullmatch(checkpoint.name)
    assert match is not None
    return int(match[1])
