"""Counts where the host waits for the device: reads of a value that a GPU may not have computed yet."""

import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_METHODS = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero")
_OPERATORS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select", "aten::is_nonzero")
_ON_HOST = ("run/device/rng.py", "run/versions/adam_direction.py")
"""Lines of graphpipe that read only what is on the host: states of generators, and counts of optimizers."""


class _Reads(TorchDispatchMode):
    """Notes operators whose result the host needs."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in _OPERATORS:
            self._note(func._schema.name)
        return func(*args, **(kwargs or {}))


@contextmanager
def host_waits() -> Generator[list[str]]:
    """Return a list to which every wait in the block is added, with the line of graphpipe that caused it."""
    waits: list[str] = []

    def note(what: str) -> None:
        frames = [
            f"{each.filename.rpartition('graphpipe/')[2]}:{each.lineno}" for each in traceback.extract_stack()[:-2]
        ]
        own = [frame for frame in frames if not frame.startswith("/")]
        if own and own[-1].startswith(_ON_HOST):
            return
        if any("/torch/optim/" in frame for frame in frames):
            return  # Unless they are fused or capturable, optimizers count their steps on the host.
        waits.append(f"{what} at {own[-1] if own else frames[-1]}")

    def noted(name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name)

        def call(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
            note(name)
            return method(tensor, *arguments, **options)

        return call

    before = {name: getattr(Tensor, name) for name in _METHODS}
    equal = torch.equal
    for name in _METHODS:
        setattr(Tensor, name, noted(name))
    torch.equal = lambda one, other: (note("equal"), equal(one, other))[1]  # type: ignore[assignment]
    try:
        with _Reads(note):
            yield waits
    finally:
        torch.equal = equal
        for name, method in before.items():
            setattr(Tensor, name, method)
