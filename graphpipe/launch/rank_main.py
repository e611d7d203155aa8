"""The program of a rank: `python -m graphpipe.launch.rank_main package.module:function ARGUMENT...`."""

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable

from graphpipe.collection_pause import collection_paused
from graphpipe.errors import GraphPipeError
from graphpipe.launch.parent_watch import die_with_launcher
from graphpipe.user_frames import describe_error


def run_as_rank(main: Callable[[], None]) -> int:
    """Run a rank's work, and return the exit code of its process. The process ends when its launcher does.

    An error and its traceback are written to a file that the launcher reads. Without a launcher, the error is printed.
    With GRAPHPIPE_DEBUG=1, the traceback of an unexpected error is printed, too.
    """
    die_with_launcher()
    with collection_paused():  # A rank imports torch here, if its program has not done so.
        from torch.distributed.elastic.multiprocessing.errors import record
    try:
        record(main)()
    except GraphPipeError as error:
        if "TORCHELASTIC_ERROR_FILE" not in os.environ:
            print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        if os.environ.get("GRAPHPIPE_DEBUG"):
            traceback.print_exc()
        elif "TORCHELASTIC_ERROR_FILE" not in os.environ:
            print(f"error: {describe_error(error)}. GRAPHPIPE_DEBUG=1 shows the traceback.", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    """Call the function that the command line names, with the arguments after it."""
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
