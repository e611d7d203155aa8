"""What runs in a rank: `python -m graphpipe.launch.rank_main package.module:function ARGUMENT...`."""

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable

from torch.distributed.elastic.multiprocessing.errors import record

from graphpipe.errors import GraphPipeError
from graphpipe.launch.parent_watch import end_with_launcher
from graphpipe.user_frames import describe


def as_rank(main: Callable[[], None]) -> int:
    """Run a rank's work, and return the exit code of its process, which ends when its launcher does.

    An error is written where the launcher finds it, with its traceback; it is printed here only if nobody launched
    this process. GRAPHPIPE_DEBUG=1 prints the traceback of a surprise.
    """
    end_with_launcher()
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
            print(f"error: {describe(error)}. GRAPHPIPE_DEBUG=1 shows the traceback.", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    """Call the function that the command line names with the arguments that follow."""
    module, _, name = sys.argv[1].partition(":")
    return as_rank(lambda: getattr(importlib.import_module(module), name)(*sys.argv[2:]))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        # Connections to dead peers may abort the process when they are torn down: leave without.
        os._exit(code)
