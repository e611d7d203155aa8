"""Checkpoints of a training: saved from any plan, loaded into any other, by the model's own names.

Every rank writes one safetensors file of the stages it hosts and one of what its optimizer keeps for them, and reads
only what it needs. Not torch.distributed.checkpoint, although its reader reads these files too: that unpickles the
metadata file of a checkpoint and the plans that ranks send each other, loads a flipped bit or another dtype without
a word, and removes the old metadata before the new is in place. Nothing here is ever unpickled.

    step k      copy in memory | a thread writes: files, their SHA-256, rank 0 the manifest, then the folder's name
    step k+1    goes on        |
"""

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from graphpipe.errors import InvalidInput
from graphpipe.run.checkpoint import folder as folders
from graphpipe.run.checkpoint.restore import load, verify_state
from graphpipe.run.checkpoint.snapshot import Snapshot, collect, take, write, written
from graphpipe.run.checkpoint.training_state import TrainingState
from graphpipe.run.comm.together import together
from graphpipe.run.faults.out_of_memory import naming_shortage
from graphpipe.run.pipeline import Pipeline
from graphpipe.run.step.pipeline_state import Held
from graphpipe.training.task.data_reader import Position

POLL_SECONDS, GRACE_SECONDS = 0.02, 5.0


class Checkpoints:
    """The checkpoints of a pipeline in one folder, which all ranks see. All ranks call its methods alike (SPMD).

    Args:
        pipeline: that trains.
        folder: made when it is needed.
        keep: how many checkpoints stay; the last good one is never removed before the next is complete.

    Raises:
        InvalidInput: `keep` is less than 1.
    """

    def __init__(self, pipeline: Pipeline, folder: str | Path, *, keep: int = 2) -> None:
        if keep < 1:
            raise InvalidInput(f"is {keep}, must be at least 1", where="keep")
        self.folder = Path(folder)
        self._pipeline = pipeline
        self._keep = keep
        self._saving: _Saving | None = None

    def save(self, position: Position | None = None) -> None:
        """Copy the state after the last step, and write it while training goes on; waits for the save before.

        Args:
            position: where in the data the training is.

        Raises:
            InvalidInput: as `wait`; or the folder holds a checkpoint of a later step, which is another training's.
        """
        self.wait()
        self._pipeline.held().worker.watch.notebook.note("checkpoint")
        pipeline, held = self._pipeline, self._pipeline.held()
        training = TrainingState(
            step=pipeline.steps,
            seed=held.seed,
            batch_size=held.plan.batch_size,
            position=position or Position(),
            loss_scale=held.loss_scale,
        )
        world = held.world
        part = self.folder / f"step-{pipeline.steps:08}.part"
        # What an interrupted save left behind may take a while to remove.
        together(world, lambda: folders.begin(self.folder, pipeline.steps) if world.rank == 0 else part, patient=True)
        held.publish()
        snapshot = together(world, lambda: take(held, training))
        self._saving = _Saving(
            part, world.rank, world.size, self._keep, lambda: _write(part, held, training.step, snapshot)
        )

    def wait(self) -> None:
        """Wait until the last save is complete on all ranks.

        Raises:
            InvalidInput: it failed, on any rank; the checkpoints before it are still there.
            PeerLost, PeerStalled: another rank is gone.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            world = self._pipeline.held().world
            together(world, saving.finish_writing, patient=True)
            together(world, saving.finish, patient=True)

    def load(self) -> TrainingState:
        """Give the pipeline the state of the newest good checkpoint, and return where the training is.

        Damaged ones are passed over with a warning, and renamed.

        Raises:
            InvalidInput: no checkpoint, or one of another model, optimizer, seed or mini-batch size.
            CheckpointCorrupt: every checkpoint is damaged.
            PeerLost, PeerStalled: another rank is gone.
        """
        self.wait()
        world = self._pipeline.held().world
        # Rank 0 reads every byte of it: of a large one for longer than the others would wait for a silent rank.
        name = together(world, lambda: settle(self.folder).name if world.rank == 0 else "", patient=True)
        training = load(self._pipeline.held(), self.folder / world.exchange(name)[0])
        self._pipeline.go_on_from(training.step, training.loss_scale)
        return training

    def __enter__(self) -> Self:
        """Return the checkpoints; the last save is complete at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Wait; after an error a few seconds only, because other ranks may be gone."""
        if error is None:
            self.wait()
        elif self._saving is not None:
            self._saving.thread.join(GRACE_SECONDS)


def settle(folder: Path) -> Path:
    """Return the newest good checkpoint of a folder, after renaming the damaged ones that are newer.

    Raises:
        InvalidInput: there is no checkpoint.
        CheckpointCorrupt: every one is damaged.
    """
    found = folders.find(folder, verify_state)
    for damaged in found.newer:
        folders.set_aside(damaged)
    return found.path


def _write(part: Path, held: Held, step: int, snapshot: Snapshot) -> None:
    # A fault that is to be injected here strikes in the thread that writes.
    with naming_shortage(held.worker.watch):
        held.worker.watch.injector.strike("checkpoint", step, part)
        write(part, held.world.rank, snapshot)


class _Saving:
    """A save under way: this rank's files are written in a thread, on rank 0 also the manifest when all have come."""

    def __init__(self, part: Path, rank: int, ranks: int, keep: int, work: Callable[[], None]) -> None:
        self.part, self.rank, self.ranks, self.keep = part, rank, ranks, keep
        self.problem: Exception | None = None
        self.committed = False
        self.hurry = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True, name="graphpipe-checkpoint")
        self.thread.start()

    def finish_writing(self) -> None:
        """Wait until this rank's files are written."""
        self.hurry.set()
        self.thread.join()
        if self.problem is not None:
            raise self.problem

    def finish(self) -> None:
        """Complete the checkpoint, if that has not happened already; all ranks have written."""
        if self.rank == 0 and not self.committed:
            self._commit()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
            while self.rank == 0 and not self.committed and not self.hurry.wait(POLL_SECONDS):
                if written(self.part, self.ranks):
                    self._commit()
        except Exception as error:
            self.problem = error

    def _commit(self) -> None:
        folders.commit(self.part, collect(self.part, self.ranks), self.keep)
        self.committed = True
