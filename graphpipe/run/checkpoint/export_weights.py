"""Weights for plain PyTorch: one safetensors file that `model.load_state_dict(load_file(path))` reads."""

import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from graphpipe.run.checkpoint.folder import find, sync
from graphpipe.run.checkpoint.manifest import MANIFEST, verify_checkpoint
from graphpipe.run.checkpoint.model_tensors import state
from graphpipe.run.checkpoint.safetensors_files import copies, read_tensors, write_tensors
from graphpipe.run.comm.together import unusable

CHECKPOINTS = "checkpoints"
"""The folder of them in a run's folder."""


def export(source: str | Path, output: str | Path) -> Path:
    """Write the whole model of a checkpoint to one file, and return the checkpoint.

    Args:
        source: a checkpoint; or a folder of checkpoints, or of a run, of which the newest good one is taken.
        output: the file; tied tensors are in it under each of their names.

    Raises:
        InvalidInput: no checkpoint there, or the file cannot be written.
        CheckpointCorrupt: the checkpoint is damaged, or every one is.
    """
    place = Path(source)
    if (place / CHECKPOINTS).is_dir():
        place = place / CHECKPOINTS
    checkpoint = place if (place / MANIFEST).exists() else find(place).path
    contents = verify_checkpoint(checkpoint)
    tensors = read_tensors(checkpoint, contents.tensors)
    _write(Path(output), tensors | {name: tensors[other].clone() for name, other in contents.aliases.items()})
    return checkpoint


def save_weights(module: nn.Module, output: Path) -> None:
    """Write the tensors of a module's state_dict to one file.

    Raises:
        InvalidInput: the file cannot be written.
    """
    _write(output, copies(state(module)))


def _write(output: Path, tensors: Mapping[str, Tensor]) -> None:
    part = output.with_name(f"{output.name}.part")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(part, tensors)
        sync(part)
        os.replace(part, output)
    except OSError as error:
        raise unusable(error) from None
