"""`inductor`: PyTorch's compiler. On a CPU it needs a C++ compiler."""

import os
import shutil
from collections.abc import Sequence

import torch
from torch import Tensor, fx

from graphpipe.devices.registry import usable_accelerator
from graphpipe.model.backends.backend import Backend, Region


def compile_inductor(module: fx.GraphModule, arguments: Sequence[Tensor]) -> Region:
    """Return the compiled module. It is compiled here, and not in the first call that counts."""
    compiled = torch.compile(module, fullgraph=True, dynamic=False)
    compiled(*arguments)
    return compiled


def _missing() -> str:
    compiler = os.environ.get("CXX", "g++")
    if usable_accelerator() is not None or shutil.which(compiler):
        return ""
    return f"the C++ compiler {compiler} is not installed"


INDUCTOR = Backend(
    name="inductor", kind="operators", compile=compile_inductor, missing=_missing, relative_tolerance=1e-4
)
