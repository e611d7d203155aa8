"""Writes the weights of a pipeline: each rank its own, then rank 0 makes one file or a folder of these.

every rank   FOLDER.part/model-RR.safetensors, tensor by tensor
rank 0       reads one tensor at a time from these files, and writes it where users look for it
"""

import shutil
from pathlib import Path
from typing import Any

from torch import nn

from graphpipe.files.text_file import write_text
from graphpipe.run.checkpoint.manifest import MANIFEST, FileEntry, Manifest
from graphpipe.run.checkpoint.model_tensors import ModelTensors
from graphpipe.run.checkpoint.safetensors_files import write_tensors
from graphpipe.run.comm.collective_calls import collective_call
from graphpipe.run.export.write_model import SHARD_BYTES, model_bytes, write_model_file, write_model_folder
from graphpipe.run.pipeline import Pipeline
from graphpipe.run.sources.checkpoint_reader import CheckpointReader

TRANSFORMERS_CONFIG = "transformers-config.json"
"""The name, in a run's folder, of the configuration of a model of Hugging Face."""


def save_model(pipeline: Pipeline, file: str | Path, folder: str | Path, *, shard_bytes: int = SHARD_BYTES) -> Path:
    """Write the current weights, and return where they are; all ranks call this, with places that all can access.

    Args:
        pipeline: with the weights. No rank needs memory for more than one tensor of another.
        file: what a model of at most `shard_bytes` is written to.
        folder: what a larger model is written to, as several files with an index.
        shard_bytes: the largest file.

    Raises:
        InvalidInput: on every rank: a file cannot be written.
        PeerLost, PeerStalled: another rank is gone.
    """
    world, parts = pipeline.world, Path(f"{folder}.part")
    pipeline.gather_weights()
    state = pipeline.state
    model = ModelTensors.of(state)

    def begin() -> None:
        if world.rank == 0:
            shutil.rmtree(parts, ignore_errors=True)
            parts.mkdir(parents=True)

    def write() -> None:
        own = model.saved_by(state)
        name = f"model-{world.rank:02}.safetensors"
        tensors = write_tensors(parts / name, own) if own else {}
        files = {name: FileEntry(bytes=(parts / name).stat().st_size, sha256="")} if own else {}
        aliases = model.aliases if world.rank == 0 else {}
        Manifest(files=files, tensors=tensors, aliases=aliases).save(parts / f"written-{world.rank:02}.json")

    def finish() -> None:
        lists = [parts / f"written-{rank:02}.json" for rank in range(world.size)]
        if world.rank == 0:
            Manifest.union(Manifest.load(path) for path in lists).save(parts / MANIFEST)
            reader = CheckpointReader(parts)
            if model_bytes(reader) <= shard_bytes:
                write_model_file(reader, Path(file))
            else:
                write_model_folder(reader, Path(folder), shard_bytes=shard_bytes)
                save_transformers_config(state.model, Path(folder) / "config.json")
            save_transformers_config(state.model, Path(file).with_name(TRANSFORMERS_CONFIG))
            shutil.rmtree(parts, ignore_errors=True)

    collective_call(world, begin, slow=True)
    collective_call(world, write, slow=True)
    collective_call(world, finish, slow=True)
    return Path(file) if Path(file).exists() else Path(folder)


def save_transformers_config(model: nn.Module | None, path: Path) -> None:
    """Write the configuration of a model of Hugging Face. Other models have none."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_json_string") and hasattr(config, "model_type"):
        write_text(path, config.to_json_string())
