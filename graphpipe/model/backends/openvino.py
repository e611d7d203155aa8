"""`openvino`: OpenVINO's compiler on the CPU, in full precision."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, fx, nn

from graphpipe.model.backends.backend import Backend, Region
from graphpipe.model.torch_private import flatten, unflatten


class _Flat(nn.Module):
    """Returns the outputs of a region one after the other, because OpenVINO takes no nested ones."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return all outputs."""
        return tuple(flatten(self.module(*values))[0])


def compile_openvino(module: fx.GraphModule, arguments: Sequence[Tensor]) -> Region:
    """Return a compiled model that shares memory with NumPy's arrays."""
    openvino: Any = import_module("openvino")
    tensors, structure = flatten(module(*arguments))
    if not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise TypeError("returns something else than tensors")
    converted: Any = openvino.convert_model(_Flat(module), example_input=tuple(arguments))
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled: Any = openvino.compile_model(converted, "CPU", settings)

    def run(*values: Tensor) -> Any:
        results: Any = compiled([value.contiguous().numpy() for value in values])
        leaves = [torch.from_numpy(results[number].copy()) for number in range(len(tensors))]
        return unflatten(leaves, structure)

    return run


def _missing() -> str:
    return "" if find_spec("openvino") else "openvino is not installed (pip install 'graphpipe-torch[openvino]')"


OPENVINO = Backend(name="openvino", kind="graph", compile=compile_openvino, missing=_missing, relative_tolerance=1e-3)
