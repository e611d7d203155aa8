"""Formats of other tools by name: those of GraphPipe, of installed packages, and those that a program registers."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from graphpipe.errors import InvalidInput, nearest
from graphpipe.exporters.cornstarch import CORNSTARCH
from graphpipe.exporters.exo import EXO
from graphpipe.exporters.exporter import Exporter
from graphpipe.exporters.layers import LAYERS
from graphpipe.exporters.megatron import MEGATRON
from graphpipe.exporters.megatron_mimo import MEGATRON_MIMO
from graphpipe.exporters.torch_pipelining import TORCH_PIPELINING
from graphpipe.exporters.torchtitan import TORCHTITAN
from graphpipe.plugins import load_plugins, register_by_name

ENTRY_POINTS = "graphpipe.exporters"
"""Entry-point group through which an installed package registers an `Exporter` for every process."""

_OWN = (LAYERS, TORCH_PIPELINING, TORCHTITAN, MEGATRON, MEGATRON_MIMO, CORNSTARCH, EXO)
_BY_NAME = {exporter.name: exporter for exporter in _OWN}
EXPORTERS: Mapping[str, Exporter] = MappingProxyType(_BY_NAME)
"""All formats registered so far."""


def register_exporter(exporter: Exporter) -> None:
    """Register a format, so that it can be chosen by name in this process.

    For the command line, declare it as an entry point of an installed package:

        [project.entry-points."graphpipe.exporters"]
        mine = "my_package.my_format:MINE"

    Raises:
        InvalidInput: another format has this name.
    """
    register_by_name(_BY_NAME, exporter, "format")


def find_exporter(name: str) -> Exporter:
    """Return the format with this name.

    Raises:
        InvalidInput: the name is unknown; the message gives the nearest one.
    """
    if name not in EXPORTERS:
        _register_installed()
    if name not in EXPORTERS:
        raise InvalidInput(f"unknown format '{name}'", remedy=nearest(name, list(EXPORTERS)))
    return EXPORTERS[name]


@cache
def _register_installed() -> None:
    for _, exporter in load_plugins(ENTRY_POINTS, Exporter):
        register_exporter(exporter)
