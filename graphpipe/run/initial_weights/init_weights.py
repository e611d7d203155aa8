"""The source `init`: new weights by the model's own code, the same under every plan.

A function that builds the model runs again (see `built_weights`). For a model that was made on the meta device, the
constructors are lost. There a submodule's `reset_parameters` fills the tensors that it holds itself. If a module around
it has `_init_weights(submodule)`, as models of Hugging Face have, that method comes first. A constructor that wrote a
parameter more often than this code does has drawn it otherwise, so the parameter is refused.
"""

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import nn

from graphpipe.errors import GraphPipeError, InvalidInput
from graphpipe.model.torch_private import memory_key
from graphpipe.model.without_data.meta_model import construction_of
from graphpipe.run.initial_weights.built_weights import fill_built
from graphpipe.run.initial_weights.constructor_writes import check_constructor_writes
from graphpipe.run.initial_weights.init_code import InitFunction, code_of, paths_inner_first
from graphpipe.run.initial_weights.named_draws import NamedDraws, generators_kept
from graphpipe.run.initial_weights.own_tensors import named_tensors, names_of
from graphpipe.run.initial_weights.split_layers import BorrowedLayers
from graphpipe.run.initial_weights.weight_source import OwnTensor, WeightRequest, WeightSource
from graphpipe.user_frames import describe_error

_REMEDY = "Give its module `reset_parameters`, or set initial_weights=gp.Weights.init(function)."


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InitWeights(WeightSource):
    """New weights. They depend on the seed of the training and on the name of each parameter."""

    function: InitFunction | None = None
    """Called with every submodule, inner ones first. None: the code of the model."""

    @property
    def description(self) -> str:
        """The source in words."""
        return "new weights"

    def check(self, model: nn.Module) -> None:
        """Check nothing: what the code fills is known when it has run."""
        del model

    def fill(self, request: WeightRequest) -> None:
        """Fill the wanted tensors.

        Raises:
            InvalidInput: no code fills a tensor, the code fails, or the constructor drew a tensor otherwise.
        """
        construction = construction_of(request.model) if self.function is None else None
        origins = construction.origins if construction else {}
        built = [each for each in request.wanted if each.name in origins]
        others = [each for each in request.wanted if each.name not in origins]
        with generators_kept():
            if construction and built:
                fill_built(construction, built, request.seed)
            if others:
                if self.function is None:
                    check_constructor_writes(request.model, others)
                with torch.no_grad():
                    _Filling(replace(request, wanted=others), self.function).run()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFollow(WeightSource):
    """No values yet, because a checkpoint is loaded afterwards. Tensors without data get memory."""

    @property
    def description(self) -> str:
        """The source in words."""
        return "those of a checkpoint"

    def check(self, model: nn.Module) -> None:
        """Check nothing."""
        del model

    def fill(self, request: WeightRequest) -> None:
        """Leave the tensors as they are."""
        del request


@final
class _Filling:
    def __init__(self, request: WeightRequest, function: InitFunction | None) -> None:
        self._model, self._function, self._wanted = request.model, function, request.wanted
        self._names = {key: names[0] for key, names in names_of(request.model).items()}
        self._draws = NamedDraws(request.seed)
        self._filled: set[str] = set()
        self._keys = {id(each.whole) for each in request.wanted}

    def run(self) -> None:
        """Run the code of every submodule that holds wanted tensors."""
        wanted = self._keys
        borrowed = BorrowedLayers(self._model, self._wanted)
        for path, part in paths_inner_first(self._model):
            if any(id(tensor) in wanted for tensor, _ in named_tensors(part)):
                borrowed.before(path)
                self._run(path, part)
                borrowed.after(path)
        for each in self._wanted:
            if each.name not in self._filled | self._draws.written:
                raise self._not_filled(each)

    def _run(self, path: str, part: nn.Module) -> None:
        for tensor, _ in named_tensors(part):
            self._draws.names[memory_key(tensor)] = self._names[id(tensor)]
        held = _own(part)
        # A tied tensor is filled by the first module that has it, and what has a value keeps it.
        mine = {
            name: (tensor, memory_key(tensor))
            for name, tensor in held.items()
            if id(tensor) in self._keys and self._names[id(tensor)] == (f"{path}.{name}" if path else name)
        }
        try:
            for name in held.keys() - mine.keys():
                setattr(part, name, _stand_in(held[name]))
            self._call(path, part)
            for name, (tensor, key) in mine.items():
                found = getattr(part, name, None)
                if found is not tensor and isinstance(found, torch.Tensor) and not found.is_meta:
                    tensor.copy_(found)
                if found is not tensor or memory_key(tensor) != key:
                    self._filled.add(self._names[id(tensor)])
        finally:
            for name, tensor in held.items():
                if getattr(part, name, None) is not tensor:
                    setattr(part, name, tensor)

    def _call(self, path: str, part: nn.Module) -> None:
        with self._draws, self._draws.drawn_by(path):
            try:
                for code in code_of(self._model, path, self._function):
                    code(part)
                    if self._is_filled(part):
                        break
            except GraphPipeError:
                raise
            except Exception as error:
                raise InvalidInput(
                    f"the code that fills the weights of '{path}' raised {describe_error(error)}",
                    where="initial_weights",
                    remedy="It may write into the submodule's own tensors. Those of other ranks have no data.",
                ) from error

    def _is_filled(self, part: nn.Module) -> bool:
        written = self._draws.written | self._filled
        own = [id(tensor) for tensor in _own(part).values()]
        return all(self._names[key] in written for key in own if key in self._keys)

    def _not_filled(self, tensor: OwnTensor) -> InvalidInput:
        owner = tensor.name.rpartition(".")[0]
        kind = type(self._model.get_submodule(owner)).__name__
        return InvalidInput(
            f"'{tensor.name}' is on the meta device, and {kind} has no code that fills it",
            where="initial_weights",
            remedy=_REMEDY,
        )


def _own(part: nn.Module) -> dict[str, torch.Tensor]:
    held = [*part.named_parameters(recurse=False, remove_duplicate=False)]
    return dict(held) | dict(part.named_buffers(recurse=False, remove_duplicate=False))


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    made = tensor.detach().clone()
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
