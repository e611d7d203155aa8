"""The fixtures of the command line's tests."""

from cli_cases import config, graph, plan_file, planned_text, run

__all__ = ["config", "graph", "plan_file", "planned_text", "run"]
