"""Tensors that were saved in slices under one plan, and are loaded in other slices or whole under another."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from graphpipe.errors import CheckpointCorrupt, InvalidInput
from graphpipe.graph import ParameterSlice, parameter_of
from graphpipe.model.split.submodules import sliced
from graphpipe.run.checkpoint.manifest import MANIFEST, Manifest, TensorEntry
from graphpipe.run.checkpoint.optimizer_state import OptimizerState, slot_name
from graphpipe.run.checkpoint.safetensors_files import read_tensors
from graphpipe.run.weights.parameter_slices import join

Form = tuple[str, tuple[int, ...]]
"""The dtype and the shape of a tensor."""


def whole_forms(forms: Mapping[str, Form]) -> dict[str, Form]:
    """Return the forms of whole parameters, given those of parameters and slices by name."""
    whole: dict[str, Form] = {}
    for name, (dtype, shape) in forms.items():
        piece = ParameterSlice.parse(name)
        if piece is not None:
            length = max(piece.stop, whole[piece.parameter][1][piece.dimension] if piece.parameter in whole else 0)
            shape = (*shape[: piece.dimension], length, *shape[piece.dimension + 1 :])
        whole[parameter_of(name)] = dtype, shape
    return whole


def sources(saved: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    """Return under which names parameters and slices were saved: their own, or those of all slices of a parameter."""
    known: dict[str, list[str]] = {}
    for name in saved:
        known.setdefault(parameter_of(name), []).append(name)
    saved_of = {name: known.get(parameter_of(name), []) for name in names}
    return {name: [name] if name in saved_names else saved_names for name, saved_names in saved_of.items()}


def read_parameters(checkpoint: Path, entries: Mapping[str, TensorEntry], names: Iterable[str]) -> dict[str, Tensor]:
    """Return these parameters, slices and buffers of a checkpoint, in whichever slices they were saved.

    Args:
        checkpoint: its folder.
        entries: of all its tensors.
        names: of what is read.

    Raises:
        CheckpointCorrupt: a file is damaged, or a slice is missing.
    """
    needed = sources(entries, names)
    tensors = read_tensors(
        checkpoint, {saved_name: entries[saved_name] for saved in needed.values() for saved_name in saved}
    )
    return {
        name: _recut(checkpoint, name, {saved_name: tensors[saved_name] for saved_name in saved})
        for name, saved in needed.items()
    }


def read_slots(checkpoint: Path, manifest: Manifest, slots: Mapping[str, Sequence[str]]) -> dict[str, Tensor]:
    """Return tensors of the optimizer's state by `parameter:slot`, in whichever slices they were saved.

    A tensor of the shape of its parameter is cut and joined as the parameter is. A tensor of one element, such as a
    number of steps, is the same for all slices.

    Args:
        checkpoint: its folder.
        manifest: of the checkpoint.
        slots: the names of the slots of every parameter or slice that is read.

    Raises:
        CheckpointCorrupt: a file is damaged, or a slice is missing.
        InvalidInput: a tensor of another shape would have to be cut or joined.
    """
    needed = sources(manifest.tensors, slots)
    wanted = {slot_name(saved, key) for name, keys in slots.items() for saved in needed[name] for key in keys}
    saved_tensors = read_tensors(checkpoint, {name: manifest.slots[name] for name in wanted})
    tensors: dict[str, Tensor] = {}
    for name, keys in slots.items():
        for key in keys:
            pieces = {saved: saved_tensors[slot_name(saved, key)] for saved in needed[name]}
            first = next(iter(pieces.values()))
            if name in pieces or first.numel() == 1:
                tensors[slot_name(name, key)] = first
            elif any(piece.shape != manifest.tensors[of].shape for of, piece in pieces.items()):
                raise InvalidInput(
                    f"'{key}' of parameter '{parameter_of(name)}' was saved for {', '.join(pieces)}, and cannot be "
                    f"converted for {name}, because it does not have the shape of the parameter",
                    where=str(checkpoint),
                    remedy="Resume with a plan that splits the same operators, or start from the exported weights.",
                )
            else:
                tensors[slot_name(name, key)] = _recut(checkpoint, name, pieces)
    return tensors


def with_states_of(saved: Sequence[OptimizerState], names: Iterable[str]) -> Sequence[OptimizerState]:
    """Return the optimizer states of a checkpoint with those of parameters that were saved in other slices, by name.

    What is not a tensor is the same for all slices of a parameter.
    """
    known = {name: number for number, state in enumerate(saved) for name in state.parameters}
    added: list[dict[str, str]] = [{} for _ in saved]
    for name, saved_names in sources(known, names).items():
        if saved_names and saved_names != [name]:
            added[known[saved_names[0]]][name] = saved_names[0]
    return [
        replace(state, parameters=state.parameters | {name: state.parameters[of] for name, of in new.items()})
        for state, new in zip(saved, added, strict=True)
    ]


def joined(checkpoint: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the whole tensors of a checkpoint, given all of its tensors.

    Raises:
        CheckpointCorrupt: a slice is missing.
    """
    by_parameter: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        by_parameter.setdefault(parameter_of(name), {})[name] = tensor
    return {name: _recut(checkpoint, name, pieces) for name, pieces in by_parameter.items()}


def _recut(checkpoint: Path, name: str, pieces: Mapping[str, Tensor]) -> Tensor:
    if name in pieces:
        return pieces[name]
    piece, whole = ParameterSlice.parse(name), pieces.get(parameter_of(name))
    whole = join(pieces) if whole is None else whole
    if whole is None:
        what = f"does not hold all of '{parameter_of(name)}': it has {', '.join(pieces)}"
        raise CheckpointCorrupt(what, where=str(checkpoint / MANIFEST))
    return sliced(whole, piece).clone() if piece is not None else whole
