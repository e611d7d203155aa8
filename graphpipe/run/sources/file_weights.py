"""The source of weights that reads files, whatever their format."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.run.initial_weights.init_weights import InitWeights
from graphpipe.run.initial_weights.own_tensors import named_tensors, names_of, saved_ids
from graphpipe.run.initial_weights.weight_source import OwnTensor, WeightRequest, WeightSource
from graphpipe.run.sources.tensor_names import file_names, ignored_by, matches, tied_to
from graphpipe.run.sources.tensor_reader import TensorReader


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileWeights(WeightSource):
    """Weights from files. A rank reads the tensors, or slices of tensors, of its own stages."""

    path: Path
    open: Callable[[Path], TensorReader]
    """Opens the reader of the format."""
    new: tuple[str, ...] = ()
    """Patterns of tensors that the files need not have. They are made by `init`."""
    ignore: tuple[str, ...] = ()
    """Patterns of tensors of the files that the model need not have."""

    @property
    def description(self) -> str:
        """The source in words."""
        return f"those of {self.path.name}"

    def check(self, model: nn.Module) -> None:
        """Check that the names of the files are those of the model.

        Raises:
            InvalidInput: a tensor is missing or unknown.
        """
        reader = self.open(self.path)
        tied, saved = names_of(model), saved_ids(model)
        wanted = {name: tied[id(tensor)] for tensor, name in named_tensors(model) if id(tensor) in saved}
        names, prefix = file_names(model, wanted, reader.names)
        for name, others in wanted.items():
            if tied_to(names, others) is None and not matches(name, self.new):
                raise InvalidInput(
                    f"has no '{name}', which this model has",
                    where=str(reader.path),
                    remedy="Give the weights of this model, or name it in `new`, so that it is made anew.",
                )
        used = {*names.values()}
        # What stands beside the model, as the state of an optimizer does, is not the model's.
        for name in sorted(each for each in reader.names if each.startswith(prefix)):
            if name not in used and not ignored_by(model, name, self.ignore):
                raise InvalidInput(
                    f"has '{name}', which this model does not have",
                    where=str(reader.file_of(name)),
                    remedy="Give the weights of this model, or name it in `ignore`.",
                )

    def fill(self, request: WeightRequest) -> None:
        """Read the wanted tensors, one at a time.

        Raises:
            InvalidInput: a tensor has another shape or kind in the files, or they cannot be read.
            CheckpointCorrupt: a checkpoint is damaged.
        """
        reader = self.open(self.path)
        names, _ = file_names(request.model, {name for _, name in named_tensors(request.model)}, reader.names)
        pairs = [(tied_to(names, each.names), each) for each in request.wanted]
        new = [each for name, each in pairs if name is None]
        InitWeights().fill(WeightRequest(model=request.model, wanted=new, seed=request.seed))
        found = [(name, each) for name, each in pairs if name is not None]
        with reader.reading(), torch.no_grad():
            for name, each in sorted(found, key=lambda pair: str(reader.file_of(pair[0]))):
                self._read(reader, name, each)

    def _read(self, reader: TensorReader, name: str, own: OwnTensor) -> None:
        shape, dtype = reader.form(name)
        if shape != tuple(own.whole.shape) or dtype.is_floating_point != own.tensor.dtype.is_floating_point:
            theirs, ours = (
                f"{str(kind).removeprefix('torch.')}{[*sizes]}"
                for kind, sizes in ((dtype, shape), (own.tensor.dtype, own.whole.shape))
            )
            raise InvalidInput(
                f"'{name}' is {theirs} in it and {ours} in this model",
                where=str(reader.file_of(name)),
                remedy="Give the weights of this model, or build the model with other sizes.",
            )
        own.tensor.copy_(reader.read(name, own.piece))


def as_patterns(given: Sequence[str] | str, where: str) -> tuple[str, ...]:
    """Return patterns of names as a tuple.

    Raises:
        InvalidInput: they are one text, whose letters would be the patterns.
    """
    if isinstance(given, str):
        raise InvalidInput(f"is '{given}', must be a list of patterns", where=where, remedy=f"Write ['{given}'].")
    return tuple(given)
