"""`first_failure`: which rank of a launch failed first. The others failed as a consequence, or were stopped."""

import re
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from itertools import dropwhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from graphpipe import errors
from graphpipe.errors import GraphPipeError
from graphpipe.launch.hung_ranks import HungRanks
from graphpipe.run.faults.rank_status import NO_PEER, read_status
from graphpipe.user_frames import user_place_in

_LOST, _STALLED = "PeerLost", "PeerStalled"
_NONE: Mapping[int, str] = MappingProxyType({})
_ON_RANK = re.compile(r"\(on rank (\d+)")


class RankFailed(GraphPipeError):
    """A rank failed, and the others were stopped.

    Args:
        rank: the rank that failed first.
        what: the error it raised, or how its process ended.
        kind: name of the exception's type; empty if it raised none.
        host: host, stage, step and task, as far as they are known.
        seen: when it last wrote its status, by `time.monotonic` of this machine.
        failed: all ranks that failed by themselves, this one first.
        after_work: all ranks had done their work before.
    """

    def __init__(
        self,
        rank: int,
        what: str,
        *,
        kind: str,
        host: str,
        seen: float,
        failed: tuple[int, ...],
        after_work: bool = False,
    ) -> None:
        self.rank, self.kind, self.seen, self.failed, self.after_work = rank, kind, seen, failed, after_work
        super().__init__(
            what, where=f"rank {rank} ({host})" if host else f"rank {rank}", remedy="The other ranks were stopped."
        )


def first_failure(
    failures: Mapping[int, ProcessFailure],
    folder: str | Path = "",
    exits: Sequence[int] = (),
    *,
    hung: Mapping[int, str] = _NONE,
    swept: Collection[int] = (),
    after_work: bool = False,
) -> RankFailed:
    """Return the first failure.

    1. A rank that raised an error of its own, or whose process ended by itself.
    2. A rank that lost a peer.
    3. A rank that was stopped because another had failed, or killed after another had hung.

    A rank that was stopped before any other ended was not stopped by the launcher. It counts as the first.

    If every rank only waited until the time limit, the cause is the rank that did not react to SIGTERM and had to be
    killed, or otherwise the rank that was not waiting for any other, or that had not even begun.

    NCCL's watchdog ends a process with SIGABRT, without an error, if another rank does not answer. So ranks that ended
    in this way have lost a peer, unless one of them is alone and nothing says that it waited.

    Args:
        failures: by rank.
        folder: the ranks' status files (see `rank_status`); may be empty.
        exits: the process ids of ranks in the order in which they ended, as far as it is known.
        hung: why ranks were killed because they hung, by rank.
        swept: ranks that were killed because another had failed.
        after_work: all ranks had done their work before.
    """
    failures = {rank: _with_noted_error(rank, failure, folder) for rank, failure in failures.items()}
    ended = _in_order(failures, exits)
    stopped = _stopped_from_outside(failures, ended)
    aborted = _aborted_by_watchdog(failures, folder)
    after = _killed_after(hung, failures, ended, swept)
    levels = {rank: _level(rank, failure) for rank, failure in failures.items()}
    levels |= dict.fromkeys(aborted, 1) | dict.fromkeys(after, 2)
    guilty = {rank for rank in failures if rank == stopped or levels[rank] == 0}
    limit_passed = bool(aborted) or _stalled(failures)
    if limit_passed and not guilty:
        guilty = _silent(failures, aborted, folder)
    order = sorted(
        failures, key=lambda rank: (rank != stopped, rank not in guilty, levels[rank], failures[rank].timestamp, rank)
    )
    rank = order[0]
    failure, seen = failures[rank], read_status(folder, rank)
    silent = limit_passed and rank in guilty and not _recorded(failure) and _ended_after(rank, aborted, ended)
    return RankFailed(
        rank,
        hung.get(rank) or (_describe_silence(failure) if silent else _describe(failure, aborted=rank in aborted)),
        kind=_recorded(failure).partition(":")[0],
        host=str(seen) if seen else "",
        seen=seen.seconds if seen else time.monotonic(),
        failed=(rank, *(other for other in order[1:] if other in guilty and failures[other].exitcode < 0)),
        after_work=after_work,
    )


def left_early(ranks: HungRanks, others: Collection[int] = ()) -> dict[int, ProcessFailure]:
    """Return the ranks that exited with code 0 before their work was done, as failures.

    Args:
        ranks: of the launch, none of which was given another number.
        others: ranks that failed otherwise.
    """
    return {number: early_exit(number) for number in ranks.left_early() if number not in others}


def early_exit(rank: int) -> ProcessFailure:
    """Return the failure of a rank that exited with code 0 before its work was done."""
    return ProcessFailure(local_rank=rank, pid=0, exitcode=0, error_file="")


def _never_began(rank: int, failure: ProcessFailure, folder: str | Path) -> bool:
    return not _recorded(failure) and read_status(folder, rank) is None


def _with_noted_error(rank: int, failure: ProcessFailure, folder: str | Path) -> ProcessFailure:
    # A rank that cannot write a file, because the disk is full, has noted its error beside its status.
    status = None if _recorded(failure) else read_status(folder, rank)
    if status is None or not status.error:
        return failure
    noted = copy(failure)
    noted.error_file_data = {"message": {"message": status.error}}
    return noted


def _in_order(failures: Mapping[int, ProcessFailure], exits: Sequence[int]) -> list[int]:
    # The ranks in the order in which they ended, as far as it is known.
    ranks = {failure.pid: rank for rank, failure in failures.items()}
    return [ranks[pid] for pid in exits if pid in ranks]


def _stopped_from_outside(failures: Mapping[int, ProcessFailure], ended: Sequence[int]) -> int | None:
    first = next(iter(ended), None)
    stopped = first is not None and failures[first].exitcode == -signal.SIGTERM and not _recorded(failures[first])
    return first if stopped else None


def _aborted_by_watchdog(failures: Mapping[int, ProcessFailure], folder: str | Path) -> set[int]:
    aborted = {rank for rank, failure in failures.items() if _is_aborted(failure)}
    others = failures.keys() - aborted
    if len(aborted) > 1 or any(_level(rank, failures[rank]) == 0 for rank in others):
        return aborted
    # One rank alone may have aborted by itself. It has not if it waited, and another one did not.
    waited = all(_waits(rank, folder) for rank in aborted)
    return aborted if waited and not all(_waits(rank, folder) for rank in others) else set()


def _is_aborted(failure: ProcessFailure) -> bool:
    return failure.exitcode == -signal.SIGABRT and not _recorded(failure)


def _is_killed(failure: ProcessFailure) -> bool:
    return failure.exitcode == -signal.SIGKILL and not _recorded(failure)


def _killed_after(
    hung: Collection[int], failures: Mapping[int, ProcessFailure], ended: Sequence[int], swept: Collection[int]
) -> list[int]:
    # Ranks that were killed because others had hung: by a sweep, or by torch's agent, which may be quicker.
    later = {*dropwhile(lambda rank: rank not in hung, ended)} - {*hung}
    killed = [rank for rank, failure in failures.items() if hung and _is_killed(failure)]
    return [rank for rank in killed if rank in swept or rank in later]


def _waits(rank: int, folder: str | Path) -> bool:
    seen = read_status(folder, rank)
    return seen is not None and seen.peer != NO_PEER


def _silent(failures: Mapping[int, ProcessFailure], aborted: Collection[int], folder: str | Path) -> set[int]:
    # Which rank the others have waited for, if every rank was stopped or gave up.
    others = [rank for rank in failures if rank not in aborted]
    waiting_for_none = {rank for rank in others if read_status(folder, rank) and not _waits(rank, folder)}
    if waiting_for_none:
        return waiting_for_none
    never_began = {rank for rank in others if _never_began(rank, failures[rank], folder)}
    if len(never_began) == 1:  # Others may have waited, and have been stopped.
        return never_began
    return {*others} if len(others) == 1 else set()


def _ended_after(rank: int, aborted: Collection[int], ended: Sequence[int]) -> bool:
    # A rank that died before others gave up was not silent.
    place = {each: position for position, each in enumerate(ended)}
    before = [place.get(other, -1) for other in aborted]
    return not before or place.get(rank, -1) > min(before)


def _level(rank: int, failure: ProcessFailure) -> int:
    # The error that a rank recorded counts more than how its process ended, because a failed rank may be stopped before
    # it has exited. An error that all ranks raise in a collective call names the rank that caused it.
    if text := _recorded(failure):
        named = _ON_RANK.search(text)
        return int(text.startswith((_LOST, _STALLED)) or (named is not None and int(named[1]) != rank))
    return 2 if failure.exitcode == -signal.SIGTERM else 0


def _stalled(failures: Mapping[int, ProcessFailure]) -> bool:
    return any(_recorded(failure).startswith(_STALLED) for failure in failures.values())


def _describe_silence(failure: ProcessFailure) -> str:
    killed = " and did not react to SIGTERM, so it was killed" if failure.exitcode == -signal.SIGKILL else ""
    return f"did not answer the other ranks within the time limit{killed}"


def _describe(failure: ProcessFailure, *, aborted: bool = False) -> str:
    if text := _recorded(failure):
        place = _place(failure)
        return f"{text.rstrip('.')} ({place})" if place else text.rstrip(".")
    if aborted:
        return "was aborted (SIGABRT), because it had waited for another rank longer than the time limit"
    if failure.exitcode < 0:
        hint = " (out of memory, perhaps)" if failure.exitcode == -signal.SIGKILL else ""
        return f"was killed by {failure.signal_name()}{hint}"
    early = "" if failure.exitcode else " before its work was done"
    return f"exited with code {failure.exitcode}{early}"


def _place(failure: ProcessFailure) -> str:
    # The line of the user's code that raised. Errors of this package need none: it would be the line of the call.
    kind = getattr(errors, _recorded(failure).partition(":")[0], None)
    message: Any = failure.error_file_data.get("message", "")
    ours = isinstance(kind, type) and issubclass(kind, GraphPipeError)
    if ours or not isinstance(message, dict):
        return ""
    details = cast("dict[str, dict[str, str]]", message).get("extraInfo", {})
    return user_place_in(details.get("py_callstack", ""))


def _recorded(failure: ProcessFailure) -> str:
    # The text that torch's `record` wrote: "ExceptionType: message", in one of two layouts.
    message: Any = failure.error_file_data.get("message", "")
    text = message.get("message", "") if isinstance(message, dict) else message
    return "" if text == "<NONE>" else str(text)
