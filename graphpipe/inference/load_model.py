"""The model of an inference job: the user's module with the weights to use."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.run.export.export_weights import checkpoint_tensors
from graphpipe.run.initial_weights.filled_copy import lacks_data
from graphpipe.run.initial_weights.weight_source import WeightSource
from graphpipe.run.sources.weights import Weights
from graphpipe.training.task.user_function import UserModel, find_model


def load_model(word: str, folder: str | Path, weights: str | None) -> UserModel:
    """Return the model in evaluation mode, and its example inputs. A model without data stays so (see `source_of`).

    Args:
        word: a zoo name or a function, which is called after torch is seeded: every rank makes the same weights.
        folder: where relative paths begin.
        weights: a safetensors file, a checkpoint or the folder of a run; None leaves the model's own.

    Raises:
        InvalidInput: the model cannot be made, or the weights are missing or of another model.
        CheckpointCorrupt: the checkpoint is damaged.
    """
    torch.manual_seed(0)
    model = find_model(word, folder)
    if weights is not None:
        source = source_of(model.module, folder, weights)
        if source is None:
            _fill(model.module, Path(folder) / weights)
        else:
            source.check(model.module)
    model.module.eval()
    return model


def source_of(module: nn.Module, folder: str | Path, weights: str | None) -> WeightSource | None:
    """Return the source from which each rank fills the weights of its own stages; None if the model has data.

    Args:
        module: of `load_model`.
        folder: where relative paths begin.
        weights: as for `load_model`. None: new weights, by the code of the model.

    Raises:
        InvalidInput: the weights are missing.
    """
    if not lacks_data(module):
        return None
    return Weights.init() if weights is None else Weights.read(Path(folder) / weights)


def _fill(module: nn.Module, source: Path) -> None:
    own = source / "model.safetensors"
    tensors = _read(own if own.is_file() else source)
    known = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    for name, value in known.items():
        if name not in tensors:
            raise _other_model(source, f"has no '{name}', which this model has")
        if tensors[name].shape != value.shape:
            what = f"'{name}' is {[*tensors[name].shape]} in it and {[*value.shape]} in this model"
            raise _other_model(source, what)
    surplus = sorted(tensors.keys() - known.keys())
    if surplus:
        raise _other_model(source, f"has '{surplus[0]}', which this model does not have")
    module.load_state_dict(tensors, strict=False)


def _read(source: Path) -> dict[str, Tensor]:
    if source.is_dir():
        return checkpoint_tensors(source)[1]
    try:
        return load_file(source)
    except (OSError, SafetensorError) as error:
        text = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InvalidInput(f"cannot be read: {text}", where=str(source), remedy="Give a safetensors file.") from None


def _other_model(source: Path, what: str) -> InvalidInput:
    return InvalidInput(what, where=str(source), remedy="Give the weights of this model.")
