"""The program of a rank: `python -m graphpipe.launch.rank_main package.module:function ARGUMENT...`."""

import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial

from graphpipe.collection_pause import collection_paused
from graphpipe.errors import GraphPipeError
from graphpipe.files.lasting_output import lasting_output, open_missing_streams
from graphpipe.launch.life_notes import LifeNotes
from graphpipe.launch.parent_watch import die_with_launcher
from graphpipe.user_frames import describe_error

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def run_as_rank(main: Callable[[], None]) -> int:
    """Run a rank's work, and return the exit code of its process. The process ends when its launcher does.

    An error and its traceback are written to a file that the launcher reads. Without a launcher, or on a full disk, the
    error is printed. With GRAPHPIPE_DEBUG=1, the traceback of an unexpected error is printed, too.
    """
    die_with_launcher()
    notes = LifeNotes.here()
    if notes:
        notes.begin()
    try:
        _recorded(main)
    except GraphPipeError as error:
        if not _error_file_exists():
            print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        if os.environ.get("GRAPHPIPE_DEBUG"):
            traceback.print_exc()
        elif not _error_file_exists():
            print(f"error: {describe_error(error)}. GRAPHPIPE_DEBUG=1 shows the traceback.", file=sys.stderr)
        return 1
    if notes:
        notes.end()
    return 0


def _recorded(main: Callable[[], None]) -> None:
    """Run `main`, and write an error to the file that the launcher reads.

    The launcher stops this rank when another one fails. A rank that was stopped while it wrote left half a file, and
    the launcher ended with a traceback. So the file gets its name once it is complete. On a full disk it never is.
    """
    with collection_paused():  # A rank imports torch here, if its program has not done so.
        from torch.distributed.elastic.multiprocessing.errors import record
    file = os.environ.get(_ERROR_FILE)
    if file is None:
        return record(partial(_noting_error, main, []))()
    os.environ[_ERROR_FILE] = f"{file}.part"
    raised: list[Exception] = []
    try:
        record(partial(_noting_error, main, raised))()
    except OSError as error:  # Perhaps that of torch, which cannot write the file.
        raise (raised or [error])[0] from None
    finally:
        os.environ[_ERROR_FILE] = file
        if _is_complete(f"{file}.part"):
            os.replace(f"{file}.part", file)


def _noting_error(main: Callable[[], None], raised: list[Exception]) -> None:
    try:
        main()
    except SystemExit as stop:  # Torch takes the code 0 for success, but the other ranks wait for this one.
        error = GraphPipeError(f"sys.exit({stop.code or 0}) was called before the work of this rank was done")
        raised.append(error)
        raise error from stop
    except Exception as error:
        raised.append(error)
        raise


def _is_complete(path: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            json.load(file)
    except (FileNotFoundError, ValueError):  # There was no error, or the disk is full.
        return False
    return True


def _error_file_exists() -> bool:
    return os.path.exists(os.environ.get(_ERROR_FILE, ""))


def main() -> int:
    """Call the function that the command line names, with the arguments after it."""
    open_missing_streams()
    with lasting_output():
        return run_as_rank(_work)


def _work() -> None:
    module, _, name = sys.argv[1].partition(":")
    with collection_paused():
        work = getattr(importlib.import_module(module), name)
    work(*sys.argv[2:])


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        # Closing connections to dead peers may abort the process, so it exits without closing them.
        os._exit(code)
