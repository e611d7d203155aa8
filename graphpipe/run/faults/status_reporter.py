"""What happens at every point of a rank's work besides the work: it is noted, and injected faults strike."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from graphpipe.run.faults.fault import Fault
from graphpipe.run.faults.injector import Injector
from graphpipe.run.faults.rank_status import NOBODY, Notebook, Whereabouts


@dataclass(slots=True, kw_only=True)
class Watch:
    """One rank's notes and faults."""

    notebook: Notebook
    injector: Injector

    @staticmethod
    def of(
        rank: int,
        stages: Sequence[str],
        device: torch.device,
        faults: Sequence[Fault] = (),
        log: Path | None = None,
    ) -> "Watch":
        """Return the watch of a rank.

        Args:
            rank: this one.
            stages: names, by position.
            device: where it computes.
            faults: of all ranks.
            log: where faults are noted as they strike.
        """
        return Watch(notebook=Notebook(rank, stages), injector=Injector.of(faults, rank, device, log))

    def begin(self, step: int) -> None:
        """Note that a step begins; steps count from 1."""
        self.notebook.step = step

    def at(self, phase: str, stage: int = -1, micro_batch: int = -1, peer: int = NOBODY) -> None:
        """Note what comes next, and let the faults strike that are due."""
        self.notebook.note(phase, stage, micro_batch, peer)
        if self.injector.armed:
            self.injector.strike(phase, self.notebook.step)

    def spoil(self, phase: str, value: Tensor) -> Tensor:
        """Return the value as the faults that are due leave it."""
        return self.injector.spoil(phase, self.notebook.step, value) if self.injector.armed else value

    def end(self) -> None:
        """Note that the step is over.

        Raises:
            InvalidInput: a fault of this step struck nothing.
        """
        if self.injector.armed:
            self.injector.check_all_struck(self.notebook.step)
        self.notebook.note("data")

    @property
    def where(self) -> Whereabouts:
        """The last note."""
        return self.notebook.last()
