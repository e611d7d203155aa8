"""The files of a checkpoint that one rank writes, and the list of them that rank 0 merges into the manifest.

every rank   model-RR.safetensors, optimizer-RR.safetensors, optimizer-RR.json
rank 0       also training.json and plan.json
every rank   last, written-RR.json: the manifest of its own files; rank 0 merges and removes these lists
"""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from torch import Tensor

from graphpipe.files.json_document import write_document
from graphpipe.run.checkpoint.folder import sync_to_disk
from graphpipe.run.checkpoint.manifest import PLAN, TRAINING, FileEntry, Manifest, TensorEntry
from graphpipe.run.checkpoint.safetensors_files import write_tensors
from graphpipe.run.checkpoint.snapshot import Snapshot


def write_rank_files(part: Path, rank: int, snapshot: Snapshot) -> None:
    """Write a rank's files and, after all of them are on the disk, the list of them.

    Raises:
        InvalidInput: a tensor has a dtype that cannot be saved.
        OSError: a file cannot be written.
    """
    tensors, model_file = _write_tensors(part / f"model-{rank:02}.safetensors", snapshot.tensors)
    slots, slot_file = _write_tensors(part / f"optimizer-{rank:02}.safetensors", snapshot.slots)
    files, names = model_file | slot_file, set[str]()
    for number, optimizer in enumerate(snapshot.optimizers):
        names.add(name := f"optimizer-{rank:02}{f'-{number}' if number else ''}.json")
        write_document(part / name, "optimizer", optimizer)
    if snapshot.common is not None:
        names |= {TRAINING, PLAN}
        write_document(part / TRAINING, "training", snapshot.common.training)
        snapshot.common.plan.save(part / PLAN)
    files |= {name: FileEntry.of(part / name) for name in names}
    for name in files:
        sync_to_disk(part / name)
    manifest = Manifest(
        files=dict(sorted(files.items())),
        tensors=tensors,
        slots=slots,
        aliases=snapshot.common.aliases if snapshot.common else {},
    )
    manifest.save(_list_path(part, rank))


def all_ranks_written(part: Path, ranks: int) -> bool:
    """True once every rank has written its files."""
    return all(_list_path(part, rank).exists() for rank in range(ranks))


def merge_rank_lists(part: Path, ranks: int) -> Manifest:
    """Return the manifest of what all ranks have written, and remove their lists."""
    lists = [_list_path(part, rank) for rank in range(ranks)]
    manifest = Manifest.union(Manifest.load(path) for path in lists)
    for path in lists:
        path.unlink()
    return manifest


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> tuple[dict[str, TensorEntry], dict[str, FileEntry]]:
    # The file is hashed while it is written, because a large one is no longer in the memory of the host afterwards.
    if not tensors:
        return {}, {}
    digest = sha256()
    entries = write_tensors(path, tensors, digest.update)
    return entries, {path.name: FileEntry(bytes=path.stat().st_size, sha256=digest.hexdigest())}


def _list_path(part: Path, rank: int) -> Path:
    return part / f"written-{rank:02}.json"
