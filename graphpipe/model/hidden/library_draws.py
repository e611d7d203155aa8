"""Random numbers of Python's or NumPy's that a forward draws while it is followed: a trace makes constants of them.

A layer that `random.random() < 0.1` left out while the model was captured would be left out in every step.
"""

import random
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from graphpipe.model.kept_attributes import module_key
from graphpipe.user_frames import warn_user

_SEED = 40961
"""The same module always gives an equal graph, whatever was drawn before. The check of a plan has other seeds."""


@contextmanager
def library_draws_fixed() -> Generator[None]:
    """Let Python and NumPy draw the same numbers each time while inside. Afterwards their generators are as before."""
    of_python, of_numpy = random.getstate(), cast("Any", np.random.get_state())
    random.seed(_SEED)
    np.random.seed(_SEED)
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


@contextmanager
def library_draws_told(followed: Mapping[nn.Module, str]) -> Generator[None]:
    """Fix the draws of both libraries, and warn of the first forward that makes one.

    It is no error, because many forwards draw whether or not anything depends on it, as with `layerdrop=0.0`.

    Args:
        followed: the modules whose forwards become glue, with their paths.
    """
    paths = {module_key(module): path for module, path in followed.items()}
    inside: list[str] = []
    drawing: list[str] = []

    def look() -> None:
        nonlocal last
        if (now := _state()) != last:
            last = now
            drawing.append(inside[-1] if inside else "")

    def enter(module: nn.Module, _: object) -> None:
        if (path := paths.get(module_key(module))) is not None:
            look()
            inside.append(path)

    def leave(module: nn.Module, _: object, __: object) -> None:
        if module_key(module) in paths:
            look()
            inside.pop()

    with library_draws_fixed():
        last = _state()
        with register_module_forward_pre_hook(enter), register_module_forward_hook(leave):
            yield
        look()
    if drawing:
        _warn(drawing[0])


def _warn(path: str) -> None:
    whose = f"'{path}'" if path else "the model itself"
    whole = f"Or keep it whole (opaque=['{path}'])." if path else "Or draw in a submodule that stays whole."
    warn_user(
        f"the forward of {whose} draws random numbers of Python's or NumPy's. A pipeline follows this forward, and "
        "keeps those of the capture: a layer that they leave out is never trained. Set its probability to 0 "
        f"(layerdrop). {whole}"
    )


def _state() -> tuple[object, ...]:
    _, key, position, *rest = cast("Any", np.random.get_state())
    return random.getstate(), key.tobytes(), position, *rest
