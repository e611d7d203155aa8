"""`StatusReporter`: records what a rank does next, and injects the faults that are due there."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from graphpipe.run.faults.fault import Fault
from graphpipe.run.faults.injector import Injector
from graphpipe.run.faults.rank_status import NO_PEER, RankStatus, StatusWriter


@dataclass(slots=True, kw_only=True)
class StatusReporter:
    """The status and the injected faults of one rank. The runtime calls it before every piece of work."""

    status: StatusWriter
    injector: Injector

    @staticmethod
    def of(
        rank: int,
        stages: Sequence[str],
        device: torch.device,
        faults: Sequence[Fault] = (),
        log: Path | None = None,
    ) -> "StatusReporter":
        """Return the monitor of a rank.

        Args:
            rank: this rank.
            stages: names of all stages, by number.
            device: where the rank computes.
            faults: of all ranks.
            log: where faults are recorded before they strike.
        """
        return StatusReporter(status=StatusWriter(rank, stages), injector=Injector.of(faults, rank, device, log))

    def begin_step(self, step: int) -> None:
        """Record that a step begins. Steps count from 1."""
        self.status.step = step

    def enter(self, phase: str, stage: int = -1, micro_batch: int = -1, peer: int = NO_PEER) -> None:
        """Record what the rank does next, then inject the faults that are due in this phase."""
        self.status.write(phase, stage, micro_batch, peer)
        if self.injector.armed:
            self.injector.strike(phase, self.status.step)

    def corrupt(self, phase: str, value: Tensor) -> Tensor:
        """Return the value, changed by the faults that are due in this phase."""
        return self.injector.corrupt(phase, self.status.step, value) if self.injector.armed else value

    def end_step(self) -> None:
        """Record that the step is over.

        Raises:
            InvalidInput: a fault of this step found nothing to strike.
        """
        if self.injector.armed:
            self.injector.check_all_struck(self.status.step)
        self.status.write("data")

    def end_steps(self, first: int, count: int) -> None:
        """Record that some steps, which ran together, are over. Raises as `end_step`."""
        for step in range(first, first + count):
            self.begin_step(step)
            self.end_step()

    @property
    def last_status(self) -> RankStatus:
        """The status that was written last."""
        return self.status.last()
