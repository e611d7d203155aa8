"""Backends by name: those of GraphPipe, of installed packages, and those that a program registers."""

from graphpipe.errors import InvalidInput
from graphpipe.model.backends.backend import Backend
from graphpipe.model.backends.eager import EAGER
from graphpipe.model.backends.inductor import INDUCTOR
from graphpipe.model.backends.onnx_runtime import ONNXRUNTIME
from graphpipe.model.backends.openvino import OPENVINO
from graphpipe.plans import Plan
from graphpipe.plugins import Registry

BACKENDS = Registry("backend", Backend, "graphpipe.backends", own=(EAGER, INDUCTOR, ONNXRUNTIME, OPENVINO))
"""All backends registered so far."""
register_backend, all_backends = BACKENDS.register, BACKENDS.all


def find_backend(name: str) -> Backend:
    """Return the backend with this name.

    Raises:
        InvalidInput: the name is unknown, with the nearest one; or what it needs is not installed.
    """
    backend = BACKENDS.find(name)
    if reason := backend.missing():
        remedy = "Install it, or place the model without it."
        raise InvalidInput(f"cannot be used here: {reason}", where=f"backend '{name}'", remedy=remedy)
    return backend


def check_backward(plan: Plan) -> None:
    """Check that a plan can train on the backends of its stages.

    Raises:
        InvalidInput: a backend has no backward.
    """
    for stage in plan.stages:
        for region in stage.regions:
            if not find_backend(region.backend).backward:
                what = f"backend '{region.backend}' of stage '{stage.name}' has no backward, and the plan trains"
                raise InvalidInput(what, where="plan", remedy="Leave the stage's regions out, or plan for inference.")
