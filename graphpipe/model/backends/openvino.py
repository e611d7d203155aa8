"""`openvino`: OpenVINO's compiler, through `torch.compile`."""

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor, fx

from graphpipe.model.backends.backend import Backend, Region


def compile_openvino(module: fx.GraphModule, arguments: Sequence[Tensor]) -> Region:
    """Return the compiled module."""
    import openvino.torch  # noqa: F401 (registers the compiler)  # pyright: ignore

    compiled = torch.compile(module, backend="openvino", dynamic=False)
    compiled(*arguments)
    return compiled


def _missing() -> str:
    return "" if find_spec("openvino") else "openvino is not installed (pip install 'graphpipe-torch[openvino]')"


OPENVINO = Backend(name="openvino", kind="graph", compile=compile_openvino, missing=_missing, relative_tolerance=1e-3)
