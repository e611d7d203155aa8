"""The command line's fixtures."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cli_cases import config, graph, plan_file, run

__all__ = ["config", "graph", "plan_file", "run"]
