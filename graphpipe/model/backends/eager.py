"""`eager`: the user's own modules, as PyTorch runs them. Every other backend is compared with it."""

from collections.abc import Sequence

from torch import Tensor, fx, nn

from graphpipe.model.backends.backend import Backend, Region


def compile_eager(module: fx.GraphModule, arguments: Sequence[Tensor]) -> Region:
    """Return the module's own forward."""
    return lambda *values: nn.Module.__call__(module, *values)


EAGER = Backend(name="eager", kind="operators", compile=compile_eager, backward=True)
