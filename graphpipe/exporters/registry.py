"""Formats of other tools by name: those of GraphPipe, of installed packages, and those that a program registers."""

from graphpipe.exporters.cornstarch import CORNSTARCH
from graphpipe.exporters.exo import EXO
from graphpipe.exporters.exporter import Exporter
from graphpipe.exporters.layers import LAYERS
from graphpipe.exporters.megatron import MEGATRON
from graphpipe.exporters.megatron_mimo import MEGATRON_MIMO
from graphpipe.exporters.torch_pipelining import TORCH_PIPELINING
from graphpipe.exporters.torchtitan import TORCHTITAN
from graphpipe.plugins import Registry

EXPORTERS = Registry(
    "format",
    Exporter,
    "graphpipe.exporters",
    own=(LAYERS, TORCH_PIPELINING, TORCHTITAN, MEGATRON, MEGATRON_MIMO, CORNSTARCH, EXO),
)
"""All formats registered so far."""
register_exporter, find_exporter = EXPORTERS.register, EXPORTERS.find
