"""Weights for plain PyTorch: one safetensors file that `model.load_state_dict(load_file(path))` reads."""

import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from graphpipe.run.checkpoint.folder import newest_valid, sync_to_disk
from graphpipe.run.checkpoint.manifest import MANIFEST
from graphpipe.run.checkpoint.model_tensors import state_tensors
from graphpipe.run.checkpoint.recut_tensors import joined
from graphpipe.run.checkpoint.safetensors_files import cpu_copies, read_tensors, write_tensors
from graphpipe.run.checkpoint.verify import verify_files
from graphpipe.run.comm.collective_calls import unusable_file

CHECKPOINTS = "checkpoints"
"""The name of the folder of checkpoints in a run's folder."""


def export_weights(source: str | Path, output: str | Path) -> Path:
    """Write the whole model of a checkpoint to one file, and return the checkpoint.

    Args:
        source: a checkpoint, or a folder of checkpoints, or the folder of a run. The newest valid checkpoint of a
            folder is exported.
        output: the file. It holds tied tensors under each of their names, and whole tensors that were saved in slices.

    Raises:
        InvalidInput: there is no checkpoint, or the file cannot be written.
        CheckpointCorrupt: the checkpoint is damaged, or all checkpoints of the folder are.
    """
    checkpoint, tensors = checkpoint_tensors(source)
    _write(Path(output), tensors)
    return checkpoint


def checkpoint_tensors(source: str | Path) -> tuple[Path, dict[str, Tensor]]:
    """Return a checkpoint and the tensors of its whole model, tied ones under each of their names.

    Args:
        source: as for `export_weights`.

    Raises:
        InvalidInput: there is no checkpoint.
        CheckpointCorrupt: the checkpoint is damaged, or all checkpoints of the folder are.
    """
    place = Path(source)
    if (place / CHECKPOINTS).is_dir():
        place = place / CHECKPOINTS
    checkpoint = place if (place / MANIFEST).exists() else newest_valid(place).path
    manifest = verify_files(checkpoint)
    tensors = joined(checkpoint, read_tensors(checkpoint, manifest.tensors))
    return checkpoint, tensors | {name: tensors[other].clone() for name, other in manifest.aliases.items()}


def save_weights(module: nn.Module, output: Path) -> None:
    """Write the tensors of a module's state_dict to one file.

    Raises:
        InvalidInput: the file cannot be written.
    """
    _write(output, cpu_copies(state_tensors(module)))


def _write(output: Path, tensors: Mapping[str, Tensor]) -> None:
    part = output.with_name(f"{output.name}.part")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(part, tensors)
        sync_to_disk(part)
        os.replace(part, output)
    except OSError as error:
        raise unusable_file(error) from None
