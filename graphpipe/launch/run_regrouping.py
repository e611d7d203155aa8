"""`run_regrouping`: runs ranks that go on without a rank that is lost, in the same processes.

    ranks 0 1 2 3 train      process 1 dies
    0, 2, 3 have left        all did the same steps, and the caller has a plan for them
    ranks 0 1 2 train        processes 0, 2 and 3

Anything else ends the launch, as it would without regrouping: a rank that hangs, ranks that have done different steps,
an error of the training itself, or a loss while ranks start or evaluate the model.
"""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.multiprocessing import SignalException

from graphpipe.launch.first_failure import RankFailed, first_failure
from graphpipe.launch.local_rendezvous import free_port
from graphpipe.launch.rank_processes import RankProcesses
from graphpipe.launch.regroup_files import POLL_SECONDS, REGROUPS, RegroupFiles, Word

Regroup = Callable[[RankFailed, int], bool]
"""Called with the loss and the steps that all other ranks have done. Prepares what the ranks run next, and returns
whether they go on without the ranks that failed."""
SILENT_SECONDS = 2.0
"""How long ranks may wait for each other before one of them counts as hung."""
LATE_SECONDS = 30.0
"""How long a rank may compute before it notices a loss."""
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_regrouping(
    command: Sequence[str],
    count: int,
    *,
    folder: Path,
    port: int,
    exits: Sequence[int],
    regroup: Regroup,
) -> None:
    """Run ranks until all have ended.

    Args:
        command: that every process runs.
        count: number of ranks.
        folder: for the files of the ranks.
        port: where the ranks meet at first; 0 is any free port.
        exits: the process ids of ranks in the order in which they ended, which is appended to.
        regroup: see `Regroup`.

    Raises:
        RankFailed: a rank failed, and the others could not go on. They have been stopped.
        SignalException: this process received a signal to stop.
    """
    processes = RankProcesses(folder)
    _raise_for_signals()
    try:
        processes.start(command, count, port or free_port(), {REGROUPS: "1"})
        run = _Run(processes, RegroupFiles(folder), exits, regroup)
        while len(run.processes.ended()) < len(processes.ranks):
            time.sleep(POLL_SECONDS)
            if run.has_failed() and not run.goes_on():
                raise run.end()
        if run.has_failed():
            raise run.end()
    finally:
        processes.stop()


@dataclass(slots=True)
class _Run:
    processes: RankProcesses
    files: RegroupFiles
    exits: Sequence[int]
    regroup: Regroup
    generation: int = 0

    def has_failed(self) -> bool:
        """True if a process has failed, or a rank has left."""
        return any(self.processes.ended().values()) or bool(self.files.steps())

    def goes_on(self) -> bool:
        """Wait until all other ranks have left, and let them go on. Return whether they do."""
        lost = self._wait_for_others()
        if not lost:
            return False
        done = {*self.files.steps().values()}
        failure = first_failure(self.processes.failures(lost), self.files.folder, self.exits)
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
        failed = [number for number, code in self.processes.ended().items() if code]
        return first_failure(self.processes.failures(failed), self.files.folder, self.exits)

    def _wait_for_others(self) -> list[int]:
        """Return the processes that are lost once all others have left; none if that does not happen."""
        began = time.monotonic()
        while time.monotonic() - began < LATE_SECONDS:
            ended, left = self.processes.ended(), self.files.steps()
            silent = self.processes.ranks.keys() - ended.keys() - {*left}
            if not all(ended.values()) or not ended.keys().isdisjoint(left):
                return []
            if not silent and ended:
                return [*ended] if left else []
            if not all(self.files.training(number).exists() for number in silent):
                return []
            if not ended and time.monotonic() - began > SILENT_SECONDS:
                return []
            time.sleep(POLL_SECONDS)
        return []

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
        signal.signal(number, stop)
