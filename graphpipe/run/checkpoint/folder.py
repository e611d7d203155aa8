"""A folder of checkpoints. A new checkpoint appears complete or not at all, and the last valid one is never removed.

step-00000010/                   the checkpoint before
step-00000020/                   the last checkpoint
step-00000020.replaced/          an older checkpoint of the same step, until the new one has its name
step-00000015.damaged-1/         a checkpoint that was found damaged
step-00000030.part/              being written; renamed once its manifest is on the disk
"""

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from graphpipe.errors import CheckpointCorrupt, InvalidInput
from graphpipe.run.checkpoint.manifest import MANIFEST, Manifest
from graphpipe.run.checkpoint.verify import verify_files, verify_resumable
from graphpipe.user_frames import warn_user

CHECKPOINTS = "checkpoints"
"""The name of the folder of checkpoints in a run's folder."""
_CHECKPOINT_NAME = re.compile(r"step-(\d{8,})(\.replaced)?")


@dataclass(frozen=True, slots=True)
class ValidCheckpoint:
    """A checkpoint that has been verified."""

    path: Path
    manifest: Manifest
    newer_damaged: tuple[Path, ...]
    """Checkpoints of later steps, all damaged."""


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, valid or damaged, newest first."""
    names = [(match, path) for path in folder.glob("step-*") if (match := _CHECKPOINT_NAME.fullmatch(path.name))]
    # Of one step, the checkpoint without `.replaced` comes first.
    ranked = sorted(names, key=lambda named: (-int(named[0][1]), named[0][2] is not None))
    return [path for _, path in ranked]


def newest_valid(folder: Path, verify: Callable[[Path], Manifest] = verify_files) -> ValidCheckpoint:
    """Return the newest valid checkpoint of a folder, and warn of each damaged one that is newer.

    Args:
        folder: holds checkpoints.
        verify: returns the manifest of a valid checkpoint, and raises CheckpointCorrupt for a damaged one.

    Raises:
        InvalidInput: there is no checkpoint.
        CheckpointCorrupt: every checkpoint is damaged; names what is wrong with the newest.
    """
    problems: list[tuple[Path, CheckpointCorrupt]] = []
    for path in list_checkpoints(folder):
        try:
            manifest = verify(path)
        except CheckpointCorrupt as error:
            problems.append((path, error))
            continue
        for _, error in problems:
            warn_user(f"{error}. Using the checkpoint before it: {path}")
        return ValidCheckpoint(path, manifest, tuple(path for path, _ in problems))
    if problems:
        first = problems[0][1]
        remedy = f"None of the {len(problems)} checkpoints can be used: train anew."
        raise CheckpointCorrupt(first.what, where=first.where, remedy=remedy)
    raise InvalidInput(
        "holds no checkpoint", where=str(folder), remedy="Checkpoints are made with train.checkpoint_every=STEPS."
    )


def find_checkpoint(place: Path, verify: Callable[[Path], Manifest] = verify_files) -> ValidCheckpoint:
    """Return the checkpoint at a place, or the newest valid one of a folder of checkpoints or of a run's folder.

    Args:
        place: the checkpoint or the folder.
        verify: as for `newest_valid`.

    Raises:
        InvalidInput: there is no checkpoint.
        CheckpointCorrupt: the checkpoint is damaged, or all of the folder are.
    """
    folder = place / CHECKPOINTS if (place / CHECKPOINTS).is_dir() else place
    if (folder / MANIFEST).exists():
        return ValidCheckpoint(folder, verify(folder), ())
    return newest_valid(folder, verify)


def newest_resumable(folder: Path) -> Path:
    """Return the newest checkpoint that training can resume from, and rename the damaged ones that are newer.

    Raises:
        InvalidInput: there is no checkpoint.
        CheckpointCorrupt: every checkpoint is damaged.
    """
    checkpoint = newest_valid(folder, verify_resumable)
    for damaged in checkpoint.newer_damaged:
        _rename_damaged(damaged)
    return checkpoint.path


def part_folder(folder: Path, step: int) -> Path:
    """Return the folder in which the ranks write the checkpoint of a step."""
    return folder / f"step-{step:08}.part"


def begin_checkpoint(folder: Path, step: int) -> Path:
    """Make the folder in which the ranks write a checkpoint, and remove what an interrupted save has left.

    Raises:
        InvalidInput: there is a checkpoint of a later step, which belongs to another training.
        OSError: the folder cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    existing = list_checkpoints(folder)
    if existing and step_of(existing[0]) > step:
        raise InvalidInput(
            f"holds a checkpoint of step {step_of(existing[0])}, this one is of step {step}",
            where=str(folder),
            remedy="Load that checkpoint before training on, or choose another folder.",
        )
    for leftover in folder.glob("step-*.part"):
        _delete(leftover)
    part = part_folder(folder, step)
    part.mkdir()
    return part


def commit_checkpoint(part: Path, manifest: Manifest, keep: int) -> Path:
    """Turn the folder that the ranks have written into a checkpoint, and remove the oldest beyond `keep`.

    Every byte is on the disk before the folder gets its name. A power failure therefore loses no more than a kill.

    Returns:
        The path of the checkpoint.
    """
    manifest.save(part / MANIFEST)
    sync_to_disk(part / MANIFEST)
    sync_to_disk(part)
    final = part.with_suffix("")
    replaced = final.with_name(f"{final.name}.replaced")
    if final.exists():
        _remove(replaced)
        final.rename(replaced)
    part.rename(final)
    sync_to_disk(final.parent)
    _remove(replaced)
    for old in list_checkpoints(final.parent)[keep:]:
        _remove(old)
    return final


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _rename_damaged(damaged: Path) -> None:
    # Nothing is deleted. On a read-only disk the checkpoint keeps its name, and is skipped again next time.
    for number in range(1, 1000):
        target = damaged.with_name(f"{damaged.name}.damaged-{number}")
        if not target.exists():
            with suppress(OSError):
                damaged.rename(target)
            return


def _remove(checkpoint: Path) -> None:
    # It loses its name first, so that a half-deleted folder is never taken for a checkpoint.
    if os.path.lexists(checkpoint):
        doomed = checkpoint.with_name(f"{checkpoint.name}.old.part")
        checkpoint.rename(doomed)
        _delete(doomed)


def _delete(path: Path) -> None:
    # If the path is a link, only the link is removed: its target may not be a checkpoint of ours.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def step_of(checkpoint: Path) -> int:
    """Return the steps done at a checkpoint, by its name."""
    match = _CHECKPOINT_NAME.fullmatch(checkpoint.name)
    assert match is not None
    return int(match[1])
