"""The command line: argument parsing, one file per verb."""

from graphpipe.cli.main import main

__all__ = ["main"]
