"""`graphpipe init`: a folder with a task, a configuration and a test that run, to be changed into a project."""

import argparse
from pathlib import Path

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.example_files import PROJECT, write_files
from graphpipe.cli.output import Output
from graphpipe.errors import InvalidInput

EXAMPLE = """\
graphpipe init my-project
graphpipe train my-project/train.toml"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "init", "write a project that runs: a task, a configuration and a test", EXAMPLE)
    parser.add_argument("name", metavar="NAME", help="a folder that does not exist yet, or is empty")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the files, and say what to do next."""
    output, folder = Output(args.json), Path(args.name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput("exists already", where=args.name, remedy="Name another folder: nothing is overwritten.")
    files = write_files(PROJECT, folder)
    output.show(
        f"{folder}: {', '.join(path.name for path in files)}",
        f"train it:  graphpipe train {folder / 'train.toml'}",
        f"test it:   python -m pytest {folder}",
        f"then put your own model, data and loss into {folder / 'task.py'}",
    )
    output.emit({"folder": str(folder), "files": [str(path) for path in files]})
    return 0
