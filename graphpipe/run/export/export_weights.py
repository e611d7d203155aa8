"""The weights of a checkpoint or of a finished run for plain PyTorch and for `transformers`."""

import shutil
from pathlib import Path

from torch import Tensor

from graphpipe.run.checkpoint.folder import find_checkpoint
from graphpipe.run.checkpoint.manifest import MANIFEST
from graphpipe.run.checkpoint.verify import verify_files, verify_weights
from graphpipe.run.comm.collective_calls import unusable_file
from graphpipe.run.export.save_model import TRANSFORMERS_CONFIG
from graphpipe.run.export.write_model import write_model_file, write_model_folder
from graphpipe.run.sources.checkpoint_reader import CheckpointReader
from graphpipe.run.sources.safetensors_reader import INDEX, SafetensorsReader


def export_weights(source: str | Path, output: str | Path, *, averaged: bool = False) -> Path:
    """Write a whole model to a file or a folder, and return where its weights were.

    One tensor at a time is in memory.

    Args:
        source: a checkpoint, or a folder of checkpoints, or the folder of a run. The newest valid checkpoint of a
            folder is exported. Or the final weights of a run, or their averages: a file, or a folder with an index.
        output: a file whose name ends with `.safetensors`, or a folder, which then has one file or several with an
            index. They hold tied tensors under each of their names, and whole tensors that were saved in slices. For a
            run of a model of Hugging Face, the folder gets its configuration, so that `from_pretrained` loads it.
        averaged: export the averages of the weights in their place.

    Raises:
        InvalidInput: there is no checkpoint, or the file cannot be written.
        CheckpointCorrupt: the checkpoint is damaged, or all checkpoints of the folder are.
    """
    place, given = Path(output), Path(source)
    final = given.suffix == ".safetensors" or ((given / INDEX).is_file() and not (given / MANIFEST).exists())
    reader = SafetensorsReader(given) if final else _reader(given, averaged=averaged)
    if place.suffix == ".safetensors":
        write_model_file(reader, place)
    else:
        write_model_folder(reader, place)
        _copy_config(given.parent if final else given, place)
    return reader.path


def checkpoint_tensors(source: str | Path) -> tuple[Path, dict[str, Tensor]]:
    """Return a checkpoint and the tensors of its whole model, tied ones under each of their names.

    Args:
        source: as for `export_weights`.

    Raises:
        InvalidInput: there is no checkpoint.
        CheckpointCorrupt: the checkpoint is damaged, or all checkpoints of the folder are.
    """
    reader = _reader(source)
    return reader.path, {name: reader.read(name, None) for name in sorted(reader.names)}


def _copy_config(run: Path, folder: Path) -> None:
    config = run / TRANSFORMERS_CONFIG
    if config.is_file():
        try:
            shutil.copyfile(config, folder / "config.json")
        except OSError as error:
            raise unusable_file(error) from None


def _reader(source: str | Path, *, averaged: bool = False) -> CheckpointReader:
    # All bytes of weights are compared with their hashes, once: they leave the care of the checkpoint here. Averages
    # are among the optimizer's tensors.
    verify = verify_files if averaged else verify_weights
    return CheckpointReader(find_checkpoint(Path(source), verify).path, averaged=averaged)
