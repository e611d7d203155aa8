"""A model without data: its parameters are on torch's meta device, and have shapes only."""

from collections.abc import Callable
from typing import Any, cast, final
from weakref import ReferenceType, ref

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from graphpipe.errors import GraphPipeError, InvalidInput
from graphpipe.user_frames import describe_error

ModelBuilder = Callable[[], nn.Module]
"""A function without arguments that returns the user's model."""


def without_data(model: nn.Module | ModelBuilder) -> nn.Module:
    """Return the model itself, or the one that a function builds, whose parameters then never have memory.

    Each parameter moves to the meta device when the function registers it. Buffers and other tensors are computed, so
    that tables in buffers that are in no checkpoint are there.

    Raises:
        InvalidInput: the function fails, or returns something else.
    """
    return model if isinstance(model, nn.Module) else build_with(model, MetaParameters().register)


def build_with(
    build: ModelBuilder, register: Callable[[nn.Module, str, nn.Parameter], nn.Parameter | None]
) -> nn.Module:
    """Return the model that a function builds.

    Args:
        build: the function.
        register: called with every parameter when it is registered: its owner, its name there, and the parameter. It
            returns the parameter to register instead; None registers the same.

    Raises:
        InvalidInput: the function fails, or returns something else.
    """
    given = cast("object", build)
    if not callable(given) or isinstance(given, type):
        name = given.__name__ if isinstance(given, type) else type(given).__name__
        what = f"is {name}, must be an nn.Module or a function that builds one"
        raise InvalidInput(what, where="model", remedy=f"Write lambda: {name}(...)." if isinstance(given, type) else "")
    handle = register_module_parameter_registration_hook(cast("Any", register))
    try:
        built = cast("object", build())
    except GraphPipeError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"the function that builds the model raised {describe_error(error)}",
            where="model",
            remedy="Its parameters have no data while it runs. Leave values to `initial_weights`.",
        ) from error
    finally:
        handle.remove()
    if not isinstance(built, nn.Module):
        what = f"the function that builds the model returned {type(built).__name__}, must return an nn.Module"
        raise InvalidInput(what, where="model")
    return built


@final
class MetaParameters:
    """Replaces parameters by others without data. A parameter that is registered twice gets one replacement."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ReferenceType[nn.Parameter], nn.Parameter]] = {}

    def register(self, owner: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        """Return the parameter without data that stands for this one; None if it has none."""
        del owner, name
        if parameter.is_meta:
            return None
        original, made = self._known.get(id(parameter), (None, None))
        if made is None or original is None or original() is not parameter:
            made = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
            self._known[id(parameter)] = ref(parameter), made
        return made
