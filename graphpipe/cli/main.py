"""The `graphpipe` command: runs a verb, and turns an exception into one sentence and an exit code."""

import argparse
import errno
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Protocol

from graphpipe.cli import (
    check,
    compare,
    completion,
    demo,
    doctor,
    evaluate,
    export,
    import_graph,
    infer,
    init,
    place,
    plan,
    profile,
    rehearse,
    report,
    show,
    simulate,
    train,
    tune,
)
from graphpipe.cli.arguments import Subparsers
from graphpipe.cli.waiting_bar import waiting_bar
from graphpipe.errors import GraphPipeError, Infeasible, InvalidInput, nearest
from graphpipe.files.lasting_output import lasting_output, open_missing_streams
from graphpipe.files.printable import printable
from graphpipe.user_frames import describe_error, user_place
from graphpipe.versions import version_line
from graphpipe.waiting import shown_by


class Verb(Protocol):
    """A module of this room: adds its arguments, and the function that runs it as their default `run`."""

    def add(self, subparsers: Subparsers) -> None:
        """Add the verb's parser."""
        ...


INVALID, INFEASIBLE, FAILED, INTERRUPTED = 2, 3, 4, 130
VERBS: dict[str, Verb] = {
    "demo": demo,
    "init": init,
    "show": show,
    "plan": plan,
    "compare": compare,
    "simulate": simulate,
    "rehearse": rehearse,
    "check": check,
    "tune": tune,
    "train": train,
    "evaluate": evaluate,
    "infer": infer,
    "place": place,
    "export": export,
    "profile": profile,
    "report": report,
    "import": import_graph,
    "doctor": doctor,
    "completion": completion,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name. None: the arguments of this process.

    Returns:
        0 done, 2 invalid input, 3 infeasible, 4 failed run, 130 interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    open_missing_streams()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            with shown_by(waiting_bar):
                return _run(given)
    except GraphPipeError as error:
        _say(f"error: {' '.join(str(error).split())}")
        _debug()
        return _code(error)
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # The reader of standard output has ended (`| head`). That is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is not None or error.errno != errno.ENOSPC:
            return _unexpected(error)
        with lasting_output():  # The error may go to the same place.
            _say(f"error: the output cannot be written: {error.strerror}")
            return FAILED
    except Exception as error:
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    if user_place(error):
        _say(f"error: {describe_error(error)}. GRAPHPIPE_DEBUG=1 shows the traceback.")
    else:
        _say(
            f"error: unexpected {describe_error(error)}. This is a bug in graphpipe: please report it, with the "
            "traceback that GRAPHPIPE_DEBUG=1 shows."
        )
    _debug()
    return FAILED


def _run(given: list[str]) -> int:
    if given and not given[0].startswith("-") and given[0] not in VERBS:
        raise InvalidInput(f"unknown verb '{given[0]}'", remedy=nearest(given[0], list(VERBS)))
    parser = make_parser()
    if not given:
        parser.print_help()
        return 0
    try:
        parsed, rest = parser.parse_known_args(given)
        # argparse takes positional arguments only in one piece, but `train CONFIG --json key=value` is valid too.
        if rest and not (hasattr(parsed, "overrides") and all("=" in word and word[0] != "-" for word in rest)):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
    except SystemExit as stop:  # argparse has printed the error or the help.
        return INVALID if stop.code else 0
    if rest:
        parsed.overrides += rest
    parsed.parser = parser
    code = parsed.run(parsed)
    sys.stdout.flush()
    return code


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="graphpipe",
        description="Plan, simulate and run pipeline-parallel training of PyTorch models whose stages form a graph.",
        epilog="Exit codes: 0 done, 2 invalid input, 3 infeasible, 4 failed run.",
    )
    parser.add_argument("--version", action="version", version=version_line())
    subparsers = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in VERBS.values():
        verb.add(subparsers)
    return parser


def _code(error: GraphPipeError) -> int:
    if isinstance(error, Infeasible):
        return INFEASIBLE
    return INVALID if isinstance(error, InvalidInput) else FAILED


def _say(text: str) -> None:
    print(printable(f"graphpipe: {text}"), file=sys.stderr)


def _debug() -> None:
    if os.environ.get("GRAPHPIPE_DEBUG"):
        traceback.print_exc()


def _show_warning(message: Warning | str, *_: object) -> None:
    _say(f"warning: {' '.join(str(message).split())}")
