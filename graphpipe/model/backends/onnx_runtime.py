"""`onnxruntime`: ONNX Runtime on the CPU, with tensors that share memory with NumPy's arrays."""

from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, fx

from graphpipe.model.backends.backend import Backend, Region

_PACKAGES = ("onnxruntime", "onnx", "onnxscript")


def compile_onnxruntime(module: fx.GraphModule, arguments: Sequence[Tensor]) -> Region:
    """Return a session that runs the exported module."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    program: Any = torch.onnx.export(module, tuple(arguments), dynamo=True, verbose=False)
    content = BytesIO()
    program.save(content)
    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session: Any = onnxruntime.InferenceSession(content.getvalue(), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    structure = module(*arguments)

    def run(*values: Tensor) -> Any:
        given = {name: value.contiguous().numpy() for name, value in zip(names, values, strict=True)}
        return _like(structure, iter([torch.from_numpy(array) for array in session.run(None, given)]))

    return run


def _like(structure: Any, leaves: Any) -> Any:
    if isinstance(structure, Tensor):
        return next(leaves)
    return tuple(_like(part, leaves) for part in structure)


def _missing() -> str:
    absent = [name for name in _PACKAGES if find_spec(name) is None]
    return f"{' and '.join(absent)} not installed (pip install 'graphpipe-torch[onnxruntime]')" if absent else ""


ONNXRUNTIME = Backend(
    name="onnxruntime", kind="graph", compile=compile_onnxruntime, missing=_missing, relative_tolerance=1e-4
)
