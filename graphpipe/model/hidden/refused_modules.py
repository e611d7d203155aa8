"""Modules that a pipeline would train otherwise in silence: those with hooks on the gradients of weights."""

from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.model.torch_private import gradient_hooks


def check_gradient_hooks(model: nn.Module) -> None:
    """Check that no weight has a hook on its gradient.

    Plain PyTorch runs it once, with the gradient of the whole mini-batch.

    Raises:
        InvalidInput: a weight has one.
    """
    for name, parameter in model.named_parameters():
        if gradient_hooks(parameter):
            raise InvalidInput(
                f"'{name}' has a hook on its gradient, which would run for each micro-batch",
                where="model",
                remedy="Remove the hook, and change gradients in a hook of the optimizer (register_step_pre_hook), "
                "which sees those of the whole mini-batch.",
            )
