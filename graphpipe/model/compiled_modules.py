"""Modules that `torch.compile` has compiled, which a pipeline would run eagerly."""

from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.model.torch_private import is_compiled


def check_not_compiled(model: nn.Module) -> None:
    """Check that neither the model nor a submodule is compiled.

    Raises:
        InvalidInput: one is.
    """
    for path, module in model.named_modules():
        if is_compiled(module):
            name = f"'{path}'" if path else "the model"
            raise InvalidInput(
                f"{name} is compiled by torch.compile, and a pipeline would run it eagerly",
                where="model",
                remedy="Give the model as it was before torch.compile.",
            )
