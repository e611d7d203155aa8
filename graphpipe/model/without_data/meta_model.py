"""A model without data: its parameters are on torch's meta device, and have shapes only."""

import warnings
from collections.abc import Iterator
from typing import Any, cast
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from graphpipe.errors import GraphPipeError, InvalidInput
from graphpipe.model.without_data.constructing import Constructing
from graphpipe.model.without_data.construction import Construction, ModelBuilder
from graphpipe.user_frames import describe_error

_constructions: dict[int, tuple[ReferenceType[nn.Module], Construction]] = {}  # by identity: not all have a hash


def without_data(model: nn.Module | ModelBuilder) -> nn.Module:
    """Return the model itself, or the one that a function builds, whose parameters then never have memory.

    Each parameter moves to the meta device when the function registers it. Buffers and other tensors are computed, so
    that tables in buffers that are in no checkpoint are there.

    Raises:
        InvalidInput: the function fails, or returns something else.
    """
    if isinstance(model, nn.Module):
        return model
    watch = Constructing()
    built = build_model(model, watch)
    made = {name: (tensor, watch.origin(tensor)) for name, tensor in _tensors(built)}
    construction = Construction(
        build=model,
        origins={name: origin for name, (tensor, origin) in made.items() if origin is not None or not tensor.is_meta},
        reads=watch.reads,
        draws=watch.draws,
    )
    _note(built, construction)
    return built


def construction_of(model: nn.Module) -> Construction | None:
    """Return how a model was built; None if it was not built by `without_data`."""
    reference, construction = _constructions.get(id(model), (None, None))
    return construction if reference is not None and reference() is model else None


def note_copy(model: nn.Module, copy: nn.Module) -> None:
    """Let a copy of a model be built as the model itself."""
    if (construction := construction_of(model)) is not None:
        _note(copy, construction)


def build_model(build: ModelBuilder, watch: Constructing) -> nn.Module:
    """Return the model that a function builds.

    Args:
        build: the function.
        watch: says which tensors have data.

    Raises:
        InvalidInput: the function fails, or returns something else.
    """
    given = cast("object", build)
    if not callable(given) or isinstance(given, type):
        name = given.__name__ if isinstance(given, type) else type(given).__name__
        what = f"is {name}, must be an nn.Module or a function that builds one"
        raise InvalidInput(what, where="model", remedy=f"Write lambda: {name}(...)." if isinstance(given, type) else "")
    handle = register_module_parameter_registration_hook(cast("Any", watch.register))
    try:
        with watch, torch.enable_grad(), warnings.catch_warnings():
            # `load_state_dict` says so of each parameter that it need not fill.
            warnings.filterwarnings("ignore", message=r"for .*: copying from a non-meta parameter")
            built = cast("object", build())
    except GraphPipeError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"the function that builds the model raised {describe_error(error)}",
            where="model",
            remedy="Its parameters have no data while it runs. Write values with copy_, or leave them to "
            "`initial_weights`.",
        ) from error
    finally:
        handle.remove()
    if not isinstance(built, nn.Module):
        what = f"the function that builds the model returned {type(built).__name__}, must return an nn.Module"
        raise InvalidInput(what, where="model")
    return built


def _note(model: nn.Module, construction: Construction) -> None:
    key = id(model)
    _constructions[key] = ref(model, lambda _: _constructions.pop(key, None)), construction


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
