"""What failed first among the ranks of a launch: the others fail as a consequence, or are stopped for its sake."""

import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from graphpipe import errors
from graphpipe.errors import GraphPipeError
from graphpipe.run.faults.rank_status import NOBODY, last_seen
from graphpipe.user_frames import user_place_in

_LOST, _STALLED = "PeerLost", "PeerStalled"
_WHOSE = re.compile(r"\(on rank (\d+)")


class RankFailed(GraphPipeError):
    """A rank failed, and the others were stopped.

    Args:
        rank: that failed first.
        what: it raised, or how it ended.
        kind: name of the exception's type; empty where there was none.
        host: rank, host, stage, step and task, as far as they are known.
        seen: when it was last heard of, in seconds since the epoch.
        failed: all ranks that failed by themselves, this one first.
    """

    def __init__(self, rank: int, what: str, *, kind: str, host: str, seen: float, failed: tuple[int, ...]) -> None:
        self.rank, self.kind, self.seen, self.failed = rank, kind, seen, failed
        super().__init__(
            what, where=f"rank {rank} ({host})" if host else f"rank {rank}", remedy="The other ranks were stopped."
        )


def first_cause(failures: Mapping[int, ProcessFailure], folder: str | Path = "") -> RankFailed:
    """Return what failed first.

    A rank that raised, or ended by itself, comes before one that lost a peer, and that before one that was stopped for
    another's sake. Where all have only waited in vain, the culprit is the rank that could not even be told to stop
    (it had to be killed), or else the one that was waiting for nobody.

    Args:
        failures: by rank.
        folder: where ranks noted what they did (see `whereabouts`); may be empty.
    """
    guilty = {rank for rank, failure in failures.items() if _level(rank, failure) == 0}
    if _stalled(failures) and not guilty:
        guilty = {rank for rank in failures if (seen := last_seen(folder, rank)) and seen.peer == NOBODY}
    order = sorted(failures, key=lambda rank: (rank not in guilty, *_key(rank, failures[rank]), rank))
    rank = order[0]
    failure, seen = failures[rank], last_seen(folder, rank)
    silent = _stalled(failures) and rank in guilty and not _recorded(failure)
    return RankFailed(
        rank,
        _silence(failure) if silent else _describe(failure),
        kind=_recorded(failure).partition(":")[0],
        host=str(seen) if seen else "",
        seen=seen.seconds if seen else time.time(),
        failed=(rank, *(other for other in order[1:] if other in guilty and failures[other].exitcode < 0)),
    )


def _key(rank: int, failure: ProcessFailure) -> tuple[int, int]:
    return _level(rank, failure), failure.timestamp


def _level(rank: int, failure: ProcessFailure) -> int:
    # What a rank wrote counts more than how it ended: it may be stopped while it is still on its way out. What all
    # ranks give up together says which of them it was (see `together`).
    if text := _recorded(failure):
        shared = _WHOSE.search(text)
        return int(text.startswith((_LOST, _STALLED)) or (shared is not None and int(shared[1]) != rank))
    return 2 if failure.exitcode == -signal.SIGTERM else 0


def _stalled(failures: Mapping[int, ProcessFailure]) -> bool:
    return any(_recorded(failure).startswith(_STALLED) for failure in failures.values())


def _silence(failure: ProcessFailure) -> str:
    killed = ", nor to being told to stop: it was killed" if failure.exitcode == -signal.SIGKILL else ""
    return f"did not answer the other ranks within the time limit{killed}"


def _describe(failure: ProcessFailure) -> str:
    if text := _recorded(failure):
        place = _place(failure)
        return f"{text.rstrip('.')} ({place})" if place else text.rstrip(".")
    if failure.exitcode < 0:
        hint = " (out of memory, perhaps)" if failure.exitcode == -signal.SIGKILL else ""
        return f"was killed by {failure.signal_name()}{hint}"
    return f"exited with code {failure.exitcode}"


def _place(failure: ProcessFailure) -> str:
    # In the user's code. Our own errors say themselves what is wrong: their place would be that of the call.
    kind = getattr(errors, _recorded(failure).partition(":")[0], None)
    message: Any = failure.error_file_data.get("message", "")
    ours = isinstance(kind, type) and issubclass(kind, GraphPipeError)
    if ours or not isinstance(message, dict):
        return ""
    told = cast("dict[str, dict[str, str]]", message).get("extraInfo", {})
    return user_place_in(told.get("py_callstack", ""))


def _recorded(failure: ProcessFailure) -> str:
    # What `record` wrote: "ExceptionType: its text", in one of two layouts.
    message: Any = failure.error_file_data.get("message", "")
    text = message.get("message", "") if isinstance(message, dict) else message
    return "" if text == "<NONE>" else str(text)
