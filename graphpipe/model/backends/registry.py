"""Backends by name: those of GraphPipe, of installed packages, and those that a program registers."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from graphpipe.errors import InvalidInput, nearest
from graphpipe.model.backends.backend import Backend
from graphpipe.model.backends.eager import EAGER
from graphpipe.model.backends.inductor import INDUCTOR
from graphpipe.model.backends.onnx_runtime import ONNXRUNTIME
from graphpipe.model.backends.openvino import OPENVINO
from graphpipe.plans import Plan
from graphpipe.plugins import load_plugins, register_by_name

ENTRY_POINTS = "graphpipe.backends"
"""Entry-point group through which an installed package registers a `Backend` for every process."""

_BY_NAME = {backend.name: backend for backend in (EAGER, INDUCTOR, ONNXRUNTIME, OPENVINO)}
BACKENDS: Mapping[str, Backend] = MappingProxyType(_BY_NAME)
"""All backends registered so far."""


def register_backend(backend: Backend) -> None:
    """Register a backend, so that it can be chosen by name in this process.

    For the command line and for ranks, declare it as an entry point of an installed package:

        [project.entry-points."graphpipe.backends"]
        mine = "my_package.my_backend:MINE"

    Raises:
        InvalidInput: another backend has this name.
    """
    register_by_name(_BY_NAME, backend, "backend")


def all_backends() -> Mapping[str, Backend]:
    """Return `BACKENDS`, including the backends of installed packages."""
    _register_installed()
    return BACKENDS


def find_backend(name: str) -> Backend:
    """Return the backend with this name.

    Raises:
        InvalidInput: the name is unknown, with the nearest one; or what it needs is not installed.
    """
    if name not in BACKENDS:
        _register_installed()
    if name not in BACKENDS:
        raise InvalidInput(f"unknown backend '{name}'", remedy=nearest(name, list(BACKENDS)))
    if reason := BACKENDS[name].missing():
        remedy = "Install it, or place the model without it."
        raise InvalidInput(f"cannot be used here: {reason}", where=f"backend '{name}'", remedy=remedy)
    return BACKENDS[name]


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


@cache
def _register_installed() -> None:
    for _, backend in load_plugins(ENTRY_POINTS, Backend):
        register_backend(backend)
