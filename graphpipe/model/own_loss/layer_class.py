"""The class of the layers of `transformers`."""

from torch import nn

from graphpipe.errors import InvalidInput


def layer_class() -> type[nn.Module]:
    """Return the class from which the layers of all models derive.

    Raises:
        InvalidInput: `transformers` is not installed.
    """
    try:
        from transformers.modeling_layers import GradientCheckpointingLayer
    except ImportError:
        remedy = "Install it: pip install 'graphpipe-torch[transformers]'."
        raise InvalidInput("transformers is not installed", where="from_transformers", remedy=remedy) from None
    return GradientCheckpointingLayer
