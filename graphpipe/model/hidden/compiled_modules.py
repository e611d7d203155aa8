"""Modules that the user has compiled by `torch.compile`. They run eagerly while a model is captured and checked."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.model.torch_private import compiled_form

WRAPPED = "_orig_mod"
"""The name of a module in what `torch.compile` returns, as its `state_dict()` shows it."""


def has_compiled(model: nn.Module) -> bool:
    """Return whether a module, or one in it, is compiled."""
    return any(compiled_form(module) for module in model.modules())


def eagerly(model: nn.Module) -> AbstractContextManager[object]:
    """Return a context in which what is compiled of a model runs eagerly."""
    return torch.compiler.set_stance("force_eager") if has_compiled(model) else nullcontext()


def check_compiled_modules(model: nn.Module) -> None:
    """Check that the pipeline can compile what the user has compiled, stage by stage.

    Raises:
        InvalidInput: a method is compiled, or the whole model is in a wrapper, whose names are not those of the model.
    """
    for path, module in model.named_modules():
        form, name = compiled_form(module), f"'{path}'" if path else "the model"
        if form == "method":
            raise InvalidInput(
                f"the forward of {name} is compiled by torch.compile, and a pipeline would run it eagerly",
                where="model",
                remedy="Compile the module in place of its method: module.compile().",
            )
        if form == "wrapper" and not path:
            raise InvalidInput(
                "is what torch.compile returns, and the names of its weights are not those of the model",
                where="model",
                remedy="Compile it in place, model.compile(), and give the model.",
            )
