"""Captured models that the tests and their ranks share. Without this, each rank would capture its model again."""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FunctionType

from torch import nn

from graphpipe.graph import Origin
from graphpipe.model.capture.capture import Captured, capture_nodes
from graphpipe.model.capture.op_splits.split_nodes import split_like
from graphpipe.model.capture_cache.capture_cache import read_entry, write_entry
from graphpipe.model.inputs import Inputs, name_inputs, read_layout
from graphpipe.plans import Plan

_BY_GRAPH: dict[int, Captured] = {}
"""By the identity of the graph, which plans hold. Every capture is kept, so that an identity is not used again."""


def shared_capture(module: nn.Module, example: Inputs, opaque: Sequence[str] = ()) -> Captured:
    """Return the capture of a module, from files if a process of these tests has captured an equal module before."""
    named = name_inputs(read_layout(module, example), example)
    shapes = [(name, tuple(each.shape), each.dtype) for name, each in named.items()]
    trained = [(each.dtype, each.requires_grad) for each in module.parameters()]
    parts = (
        type(module).__module__,
        type(module).__qualname__,
        repr(module),
        _settings(module),
        trained,
        shapes,
        *opaque,
    )
    folder = _folder() / hashlib.sha256(repr(parts).encode()).hexdigest()[:20]
    if _has_own_functions(module):
        captured = capture_nodes(module, named, Origin(method="auto", opaque=tuple(opaque)))
    else:
        with _alone(folder):  # Of several ranks, the first one captures, and the others wait.
            captured = read_entry(folder)
            if captured is None:
                captured = capture_nodes(module, named, Origin(method="auto", opaque=tuple(opaque)))
                with suppress(OSError):
                    write_entry(captured, folder)
    _BY_GRAPH[id(captured.graph)] = captured
    return captured


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        yield


def _settings(module: nn.Module) -> list[tuple[str, str, object]]:
    # What a module's repr may leave out.
    return [
        (path, name, value)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name != "training" and isinstance(value, (bool, int, float, str, tuple))
    ]


def _has_own_functions(module: nn.Module) -> bool:
    # Two modules that differ only in such a function once got one capture.
    values = (value for part in module.modules() for value in vars(part).values())
    return any(isinstance(value, FunctionType) and not value.__module__.startswith("torch") for value in values)


def shared_for(plan: Plan, module: nn.Module, example: Inputs) -> Captured:
    """Return the shared capture of a module, with the operators split that are split in a plan."""
    return split_like(shared_capture(module, example), plan.graph)


def captured_of(plan: Plan) -> Captured | None:
    """Return the capture behind a plan's graph, if `shared_capture` returned it."""
    return _BY_GRAPH.get(id(plan.graph))


@cache
def _folder() -> Path:
    # Set where the fork server is started, so that all ranks of all tests use one folder.
    shared = os.environ.get("SHARED_CAPTURES")
    return Path(shared or tempfile.mkdtemp(prefix="graphpipe-captures-"))
