"""`HungRanks`: finds ranks whose processes hang where no other rank waits for them, and kills them.

Ranks that wait for a silent rank give up after a time limit, and then the launch ends. But nobody waits for a rank that
has done its work, for the last one that works, for a single rank, or if all ranks are silent. Such a rank hangs if

- its process is stopped (SIGSTOP) for longer than the limit, at any time;
- its process has not ended so long after its work was done;
- other ranks have ended, and it has used no processor for so long, and does not wait for a disk.

A rank that has done its work is killed only when no other rank works any more.
"""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from graphpipe.launch.life_notes import LifeNotes

MARGIN_SECONDS = 5.0
"""Ranks that wait for a silent one give up first: they know what it was to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """What a process looks like from outside."""

    stopped: bool
    """Whether the process was stopped by SIGSTOP, not by a debugger."""
    done: bool
    """Whether the rank has done its work."""
    used_seconds: float
    """Processor time of the process and its children."""
    waits_for_disk: bool = False
    """Whether the process waits for a disk, such as that of a slow file system. It could not be killed either."""


@dataclass(slots=True, kw_only=True)
class HungRanks:
    """The ranks of a launch, and when each of them last showed a sign of life."""

    folder: Path
    """The folder where the ranks write their notes."""
    count: int
    """Number of processes that were started."""
    limit_seconds: float
    clock: Callable[[], float] = time.monotonic
    killed: dict[int, str] = field(default_factory=dict[int, str])
    """Why ranks were killed, by the number of their process."""
    swept: set[int] = field(default_factory=set[int])
    """Ranks that were killed because another had failed, by the number of their process."""
    _processes: dict[int, dict[int, psutil.Process]] = field(default_factory=dict[int, dict[int, psutil.Process]])
    _missed: set[int] = field(default_factory=set[int])
    """Ranks that ended before their processes were found."""
    _signs: dict[int, tuple[object, float]] = field(default_factory=dict[int, tuple[object, float]])

    def look(self, children: Mapping[int, int]) -> None:
        """Kill the ranks that hang.

        Args:
            children: the process ids of processes that this process has started, by number.
        """
        self._find(children)
        others_ended = bool(self._ended())
        seen = {number: self._glimpse(number, alone=others_ended) for number in self.running()}
        for number, reason in self.note(seen, others_ended=others_ended).items():
            self.killed[number] = reason
            self.kill([number])

    def note(self, seen: Mapping[int, Glimpse], *, others_ended: bool) -> dict[int, str]:
        """Return which ranks to kill now, and why.

        Args:
            seen: the ranks that run, now.
            others_ended: ranks have ended already.
        """
        hung: dict[int, str] = {}
        now = self.clock()
        for number, glimpse in seen.items():
            sign, reason = self._sign(glimpse, others_ended=others_ended)
            before, since = self._signs.get(number, (None, now))
            if sign is None or sign != before:
                since = now
            self._signs[number] = sign, since
            if now - since > self.limit_seconds:
                hung[number] = reason
        some_work = any(number not in hung for number in seen)
        return {number: reason for number, reason in hung.items() if not (some_work and seen[number].done)}

    def _sign(self, glimpse: Glimpse, *, others_ended: bool) -> tuple[object, str]:
        # A value that changes as long as the rank lives (None: it lives), and what is wrong if it does not.
        limit = f"for {self.limit_seconds:g} s"
        if glimpse.stopped:
            return "stopped", f"was stopped (SIGSTOP) {limit}, so it was killed"
        if glimpse.done:
            return "done", f"had not ended {self.limit_seconds:g} s after its work was done, so it was killed"
        if others_ended and not glimpse.waits_for_disk:
            return glimpse.used_seconds, f"did nothing {limit} after other ranks had ended, so it was killed"
        return None, ""

    def running(self) -> list[int]:
        """Return the numbers of the processes that run, of those that were found."""
        return [number for number, own in self._processes.items() if any(map(_runs, own.values()))]

    def stopped(self, numbers: Collection[int]) -> list[int]:
        """Return which of these processes are stopped (SIGSTOP)."""
        self._find({})  # They may have begun since the last look.
        return [number for number in numbers if any(map(_is_stopped, self._processes.get(number, {}).values()))]

    def used_seconds(self, numbers: Collection[int]) -> dict[int, float]:
        """Return the processor seconds of these processes so far, of those that do not wait for a disk."""
        self._find({})
        seen = {number: self._glimpse(number, alone=True) for number in numbers if number in self._processes}
        return {number: glimpse.used_seconds for number, glimpse in seen.items() if not glimpse.waits_for_disk}

    def failed(self) -> bool:
        """Return whether a rank has ended before its work was done."""
        return any(not self._notes(number).is_done for number in self._ended())

    def _ended(self) -> set[int]:
        # Ranks that have begun, and whose processes run no more.
        begun = {number for number in self._processes if self._notes(number).pid is not None}
        return (begun | self._missed) - {*self.running()}

    def left_early(self) -> list[int]:
        """Return the processes that have ended before their work was done, of those that note what they do."""
        self._find({})
        ended = {number for number in range(self.count) if number not in self.running()}
        return sorted(n for n in ended if self._notes(n).pid is not None and not self._notes(n).is_done)

    def all_done(self, numbers: Collection[int]) -> bool:
        """Return whether these ranks have done their work."""
        return all(self._notes(number).is_done for number in numbers)

    def sweep(self) -> None:
        """Kill all that still run, because one has failed."""
        running = self.running()
        self.swept.update(running)
        self.kill(running)

    def kill(self, numbers: Collection[int]) -> None:
        """Kill processes."""
        for number in numbers:
            for process in self._processes.get(number, {}).values():
                with suppress(psutil.Error):
                    process.kill()

    def _notes(self, number: int) -> LifeNotes:
        return LifeNotes(self.folder, number)

    def _find(self, children: Mapping[int, int]) -> None:
        # A rank may be a descendant of the process that was started for it.
        for number in range(self.count):
            own = self._processes.setdefault(number, {})
            noted = self._notes(number).pid
            for pid in {children.get(number), noted} - {None, *own}:
                try:
                    own[pid] = psutil.Process(pid)  # pyright: ignore[reportArgumentType]
                except psutil.Error:
                    if pid == noted:
                        self._missed.add(number)
            if not own:
                del self._processes[number]

    def _glimpse(self, number: int, *, alone: bool) -> Glimpse:
        own = self._processes[number].values()
        return Glimpse(
            stopped=any(map(_is_stopped, own)),
            waits_for_disk=any(_has_status(process, psutil.STATUS_DISK_SLEEP) for process in own),
            done=self._notes(number).is_done,
            used_seconds=sum(map(_used_seconds, own)) if alone else 0.0,
        )


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _is_stopped(process: psutil.Process) -> bool:
    return _has_status(process, psutil.STATUS_STOPPED)


def _has_status(process: psutil.Process, status: str) -> bool:
    try:
        return process.status() == status
    except psutil.Error:
        return False


def _used_seconds(process: psutil.Process) -> float:
    used = 0.0
    with suppress(psutil.Error):
        for part in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                times = part.cpu_times()
                used += times.user + times.system
    return used
