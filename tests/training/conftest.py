"""The fixtures of the training's tests."""

from cli_cases import config, run

__all__ = ["config", "run"]
