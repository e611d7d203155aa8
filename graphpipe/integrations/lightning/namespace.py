"""The namespace of Lightning that the user's program takes: `lightning.pytorch`, or `pytorch_lightning`.

Both have the same classes, which are not each other's subclasses.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from graphpipe.errors import InvalidInput

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _namespace() -> str:
    for name in _NAMES:
        if name in sys.modules:
            return name
    for name in _NAMES:
        if find_spec(name.partition(".")[0]) is not None:
            return name
    raise InvalidInput(
        "Lightning is not installed",
        where="graphpipe.integrations.lightning",
        remedy="pip install 'graphpipe-torch[lightning]'.",
    )


if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.plugins.precision import MixedPrecision, Precision
    from lightning.pytorch.strategies import Strategy
else:
    _pytorch = import_module(_namespace())
    LightningModule, Trainer = _pytorch.LightningModule, _pytorch.Trainer
    _precision: Any = import_module(f"{_pytorch.__name__}.plugins.precision")
    MixedPrecision, Precision = _precision.MixedPrecision, _precision.Precision
    Strategy = import_module(f"{_pytorch.__name__}.strategies").Strategy

__all__ = ["LightningModule", "MixedPrecision", "Precision", "Strategy", "Trainer"]
