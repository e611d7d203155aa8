"""`run_regrouping`: runs ranks that go on without a rank that is lost, in the same processes.

    ranks 0 1 2 3 train      process 1 dies
    0, 2, 3 have left        all did the same steps, and the caller has a plan for them
    ranks 0 1 2 train        processes 0, 2 and 3

A rank that is stopped (SIGSTOP) is killed then, and counts as lost. Anything else ends the launch, as it would without
regrouping: a rank that hangs in another way, ranks that have done different steps,
an error of the training itself, or a loss while ranks start or evaluate the model.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from graphpipe.launch.first_failure import RankFailed, early_exit, first_failure
from graphpipe.launch.hung_ranks import HungRanks
from graphpipe.launch.local_rendezvous import free_port
from graphpipe.launch.rank_processes import RankProcesses
from graphpipe.launch.regroup_files import POLL_SECONDS, REGROUPS, RegroupFiles, Word

Regroup = Callable[[RankFailed, int], bool]
"""Called with the loss and the steps that all other ranks have done. Prepares what the ranks run next, and returns
whether they go on without the ranks that failed."""
SILENT_SECONDS = 2.0
"""How long ranks may wait for each other before one of them counts as hung."""
LOOK_SECONDS = 0.2
"""Seconds between two looks at the processes."""
LATE_SECONDS = 30.0
"""How long a rank may compute before it notices a loss."""
IDLE_SECONDS = 5.0
"""How long it may use no processor meanwhile. If it does, the launch ends as if it was late: no update is lost."""
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_regrouping(
    command: Sequence[str],
    ranks: HungRanks,
    *,
    port: int,
    exits: Sequence[int],
    regroup: Regroup,
) -> None:
    """Run ranks until all have ended.

    Args:
        command: that every process runs.
        ranks: that are started. Their folder is for the files of the ranks.
        port: where the ranks meet at first; 0 is any free port.
        exits: the process ids of ranks in the order in which they ended, which is appended to.
        regroup: see `Regroup`.

    Raises:
        RankFailed: a rank failed, and the others could not go on. They have been stopped.
        SignalException: this process received a signal to stop.
    """
    processes = RankProcesses(ranks.folder)
    _raise_for_signals()
    try:
        processes.start(command, ranks.count, port or free_port(), {REGROUPS: "1"})
        run = _Run(processes, RegroupFiles(ranks.folder), exits, regroup, ranks)
        while len(run.processes.ended()) < len(processes.ranks):
            time.sleep(POLL_SECONDS)
            run.kill_hung()
            if run.has_failed() and not run.goes_on():
                raise run.end()
        if run.has_failed() or run.left_early():
            raise run.end()
    finally:
        processes.stop()


@dataclass(slots=True)
class IdleRanks:
    """How long ranks have used no processor."""

    clock: Callable[[], float] = time.monotonic
    _since: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])

    def seconds(self, used: Mapping[int, float]) -> float:
        """Return the time for which one of these ranks has been idle, the longest of them.

        Args:
            used: seconds of processor time of each rank now.
        """
        now, before = self.clock(), self._since
        known = {number: before.get(number, (seconds, now)) for number, seconds in used.items()}
        self._since = {number: was if was[0] == used[number] else (used[number], now) for number, was in known.items()}
        return max((now - since for _, since in self._since.values()), default=0.0)


@dataclass(slots=True)
class _Run:
    processes: RankProcesses
    files: RegroupFiles
    exits: Sequence[int]
    regroup: Regroup
    hung: HungRanks
    generation: int = 0
    looked: float = 0.0

    def kill_hung(self) -> None:
        """Kill the ranks that hang. They have failed then."""
        if time.monotonic() - self.looked > LOOK_SECONDS:
            self.looked = time.monotonic()
            self.hung.look(self.processes.pids())

    def has_failed(self) -> bool:
        """True if a process has failed, or a rank has left."""
        return any(self.processes.ended().values()) or bool(self.files.steps())

    def goes_on(self) -> bool:
        """Wait until all other ranks have left, and let them go on. Return whether they do."""
        lost = self._wait_for_others()
        if not lost:
            return False
        done = {*self.files.steps().values()}
        failure = self._failure(lost)
        if {self.processes.ranks[number] for number in lost} != {*failure.failed} or len(done) > 1:
            return False
        if not self.regroup(failure, done.pop()):
            return False
        self._begin_generation(lost)
        return True

    def end(self) -> RankFailed:
        """Stop all ranks, and return the first failure."""
        left = self.files.steps()
        self.files.give_word(Word(ranks={}))
        self.processes.wait(SILENT_SECONDS, [*left])  # They report what they have lost.
        self.processes.stop()
        return self._failure([number for number, code in self.processes.ended().items() if code])

    def _failure(self, numbers: Sequence[int]) -> RankFailed:
        ranks = self.processes.ranks
        return first_failure(
            self.left_early() | self.processes.failures(numbers),
            self.files.folder,
            self.exits,
            hung={ranks[number]: why for number, why in self.hung.killed.items() if number in ranks},
            after_work=self.hung.all_done([*ranks]),
        )

    def left_early(self) -> dict[int, ProcessFailure]:
        """Return the ranks that have exited with code 0 before their work was done, as failures."""
        ended, ranks = self.processes.ended(), self.processes.ranks
        early = (ranks[number] for number in self.hung.left_early() if ended.get(number) == 0)
        return {rank: early_exit(rank) for rank in early}

    def _wait_for_others(self) -> list[int]:
        """Return the processes that are lost once all others have left; none if that does not happen."""
        began = time.monotonic()
        idle = IdleRanks()
        while time.monotonic() - began < LATE_SECONDS:
            ended, left = self.processes.ended(), self.files.steps()
            silent = self.processes.ranks.keys() - ended.keys() - {*left}
            if not all(ended.values()) or not ended.keys().isdisjoint(left):
                return []
            if not silent and ended:
                return [*ended] if left else []
            if not all(self.files.training(number).exists() for number in silent):
                return []
            late = time.monotonic() - began > SILENT_SECONDS
            if late and self._kill_stopped([*silent]):
                continue
            if late and (not ended or idle.seconds(self.hung.used_seconds([*silent])) > IDLE_SECONDS):
                return []
            time.sleep(POLL_SECONDS)
        return []

    def _kill_stopped(self, silent: Sequence[int]) -> bool:
        stopped = self.hung.stopped(silent)
        self.hung.killed.update(dict.fromkeys(stopped, "was stopped (SIGSTOP), so it was killed"))
        self.hung.kill(stopped)
        self.processes.wait(SILENT_SECONDS, stopped)
        return bool(stopped)

    def _begin_generation(self, lost: Sequence[int]) -> None:
        remaining = [number for number in self.processes.ranks if number not in lost]
        ranks = {number: rank for rank, number in enumerate(remaining)}
        self.generation += 1
        folder = self.files.folder.parent if self.generation > 1 else self.files.folder
        following = RegroupFiles(folder / f"generation-{self.generation}")
        following.folder.mkdir()
        self.processes.renumber(ranks)
        self.files.give_word(Word(ranks=ranks, port=free_port(), folder=str(following.folder)))
        self.files = following


def _raise_for_signals() -> None:
    # The caller puts the earlier handlers back.
    if threading.current_thread() is not threading.main_thread():
        return

    def stop(number: int, _: FrameType | None) -> None:
        raise SignalException(f"received {signal.Signals(number).name}", sigval=signal.Signals(number))

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, stop)
