"""Reads tensors of a checkpoint of GraphPipe, whichever plan saved it."""

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.graph import ParameterSlice, parameter_of
from graphpipe.run.checkpoint.folder import find_checkpoint
from graphpipe.run.checkpoint.manifest import MANIFEST, Manifest
from graphpipe.run.checkpoint.optimizer_state import slot_name
from graphpipe.run.checkpoint.recut_tensors import read_parameters, read_slots, whole_forms
from graphpipe.run.checkpoint.verify import verify_size
from graphpipe.run.weights.weight_update import SLOT


@final
class CheckpointReader:
    """Tensors of a checkpoint, or of the newest one of a folder whose files have the right sizes.

    The files are not compared with their hashes, because every rank reads only its own part.

    Args:
        path: the checkpoint, a folder of checkpoints, or the folder of a run.
        averaged: read the averages of weights (`evaluation.average_decay`) in their place.

    Raises:
        InvalidInput: there is no checkpoint, or it has no averages.
        CheckpointCorrupt: the checkpoint is damaged, or all of the folder are.
    """

    def __init__(self, path: Path, *, averaged: bool = False) -> None:
        checkpoint = find_checkpoint(path, _verify_sizes)
        self.path, self._manifest = checkpoint.path, checkpoint.manifest
        self._averaged = _averaged(self.path, self._manifest) if averaged else frozenset[str]()
        forms = {name: (entry.dtype, entry.shape) for name, entry in self._manifest.tensors.items()}
        self._forms = whole_forms(forms)

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors, tied ones under each of their names."""
        return {*self._forms, *self._manifest.aliases}

    def file_of(self, name: str) -> Path:
        """Return the file that holds a tensor, or its first slice."""
        saved = self._manifest.aliases.get(name, name)
        entries = self._manifest.tensors
        return self.path / next(entry.file for each, entry in entries.items() if parameter_of(each) == saved)

    def form(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and the dtype of a whole tensor."""
        dtype, shape = self._forms[self._manifest.aliases.get(name, name)]
        return shape, getattr(torch, dtype)

    def read(self, name: str, piece: ParameterSlice | None) -> Tensor:
        """Return a tensor, or a slice of it."""
        saved = self._manifest.aliases.get(name, name)
        wanted = saved if piece is None else replace(piece, parameter=saved).name
        if saved in self._averaged:
            return read_slots(self.path, self._manifest, {wanted: (SLOT,)})[slot_name(wanted, SLOT)]
        return read_parameters(self.path, self._manifest.tensors, [wanted])[wanted]

    def reading(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: files are opened for each tensor."""
        return nullcontext()


def _averaged(checkpoint: Path, manifest: Manifest) -> frozenset[str]:
    # The parameters that have averages.
    slots = (name.rpartition(":") for name in manifest.slots)
    found = frozenset(parameter_of(name) for name, _, slot in slots if slot == SLOT)
    if not found:
        remedy = "A training with evaluation.average_decay saves some."
        raise InvalidInput("has no averages of the weights", where=str(checkpoint), remedy=remedy)
    return found


def _verify_sizes(checkpoint: Path) -> Manifest:
    manifest = Manifest.load(checkpoint / MANIFEST)
    for name, entry in manifest.files.items():
        verify_size(checkpoint / name, entry)
    return manifest
