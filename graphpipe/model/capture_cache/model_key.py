"""A key for everything that the capture of a model can depend on."""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from torch import nn

from graphpipe.files.json_body import to_body
from graphpipe.graph import Input, Origin
from graphpipe.model.capture_cache.user_modules import package_version, user_modules, user_sources
from graphpipe.model.capture_cache.value_form import InDoubt, ValueForms

_PACKAGE = Path(__file__).parents[2]


def model_key(module: nn.Module, inputs: tuple[Input, ...], origin: Origin) -> str | None:
    """Return a key that is equal only for models with equal captures; None if that is in doubt.

    It depends on the model's modules and all that they hold (not on the data of its weights), the inputs, the options,
    the source of graphpipe and of the user's modules with their global values, and the versions of Python and torch
    and of every package that defines a class or function of the model.
    """
    users = user_modules()
    forms = ValueForms(users)
    try:
        held = forms.form(module)
        values = [
            [name, forms.form({key: item for key, item in [*vars(value).items()] if key[:2] != "__"})]
            for name, value in users.items()
        ]
        sources = {path: _digest(content) for path, content in user_sources().items()}
        if "__main__" in forms.modules:
            return None  # the program itself has a part in the model, and its values are not known
        # Captures and their files are made by these rooms.
        parts = [held, values, sources, _packages(forms.modules), own_source("graph", "model", "files")]
    except (InDoubt, RecursionError):
        return None
    versions = [platform.python_version(), torch.__version__, *_settings_of_torch()]
    options = [[to_body(entry) for entry in inputs], to_body(origin)]
    return _digest(json.dumps([parts, versions, options]).encode())


def _packages(names: Iterable[str]) -> list[object]:
    # Of every module that defines something of the model: the version of its package, and its own content.
    packages: list[object] = []
    for name in sorted(names):
        file = getattr(sys.modules.get(name), "__file__", None)
        content = _digest(Path(file).read_bytes()) if file and Path(file).is_file() else ""
        packages.append([name, package_version(name), content])
    return packages


def _settings_of_torch() -> list[object]:
    # Capturing sets a variable of the compiler, and starting ranks those of TorchElastic, which differ in each run.
    # They have no part in captures.
    others = ("INDUCTOR", "TORCHELASTIC")
    names = sorted(name for name in os.environ if "TORCH" in name and not any(each in name for each in others))
    defaults = [str(torch.get_default_dtype()), str(torch.get_default_device())]
    return [*defaults, torch.is_autocast_enabled("cpu"), [[name, os.environ[name]] for name in names]]


@cache
def own_source(*rooms: str) -> str:
    """Return a digest of the source of some rooms of graphpipe, or of all of it; each is read once in a process."""
    folders = [_PACKAGE / room for room in rooms] or [_PACKAGE]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return _digest(b"".join(path.read_bytes() for path in files))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
