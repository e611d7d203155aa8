"""`Checkpoints`: saves a training under any plan, and loads it into a pipeline of any other plan.

Each rank writes the stages it hosts and their optimizer state, and on loading reads only what it needs.
torch.distributed.checkpoint is not used, although its reader can read these files. It unpickles the metadata of a
checkpoint and the messages between ranks, does not notice a flipped bit or another dtype, and removes the old metadata
before the new metadata is written. Nothing here is ever unpickled.

    step k      each rank writes its own tensors, one at a time, and training waits;
                on rank 0 also the manifest and the folder's name, once all ranks have written

With `background`:

    step k      each rank copies its state in the memory of the host
    step k+1    training continues; meanwhile a thread on each rank writes the copy
"""

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from graphpipe.errors import InvalidInput
from graphpipe.run.check_replicas import check_replicas
from graphpipe.run.checkpoint.folder import begin_checkpoint, commit_checkpoint, newest_resumable, part_folder
from graphpipe.run.checkpoint.rank_files import all_ranks_written, merge_rank_lists, write_rank_files
from graphpipe.run.checkpoint.restore import restore
from graphpipe.run.checkpoint.snapshot import Snapshot, take_snapshot
from graphpipe.run.checkpoint.training_state import DataPosition, TrainingState
from graphpipe.run.comm.collective_calls import collective_call
from graphpipe.run.faults.out_of_memory import reporting_out_of_memory
from graphpipe.run.faults.status_reporter import StatusReporter
from graphpipe.run.pipeline import Pipeline

POLL_SECONDS, GRACE_SECONDS = 0.02, 5.0


_NOTHING_LOST = "The checkpoint is unchanged: resume once there is more memory, or with a plan for more devices."


class Checkpoints:
    """The checkpoints of a pipeline in one folder that all ranks can access. All ranks call its methods alike (SPMD).

    Args:
        pipeline: the training.
        folder: made when it is needed.
        keep: how many checkpoints to keep. The last valid one is removed only after the next one is complete.
        background: write a copy of the state while training continues. Otherwise `save` returns when it is written, and
            no rank holds more than one tensor for it.

    Raises:
        InvalidInput: `keep` is less than 1.
    """

    def __init__(self, pipeline: Pipeline, folder: str | Path, *, keep: int = 2, background: bool = False) -> None:
        if keep < 1:
            raise InvalidInput(f"is {keep}, must be at least 1", where="keep")
        self.folder = Path(folder)
        self._pipeline = pipeline
        self._keep, self._background = keep, background
        self._saving: _BackgroundSave | None = None

    def save(self, position: DataPosition | None = None) -> None:
        """Wait for the save before, and write the present state, or begin to write a copy of it.

        Args:
            position: where in the data the training is.

        Raises:
            InvalidInput: as `wait`, the folder holds a checkpoint of a later step, which is of another training, or
                replicas of a stage have different weights.
        """
        self.wait()
        pipeline, state, world = self._pipeline, self._pipeline.state, self._pipeline.world
        monitor, step = pipeline.monitor, state.steps
        monitor.status.write("checkpoint")
        training = TrainingState(
            step=step,
            seed=state.seed,
            batch_size=state.plan.batch_size,
            position=position or DataPosition(),
            loss_scale=state.loss_scale,
        )
        part = part_folder(self.folder, step)
        # Removing the files of an interrupted save may take rank 0 a while.
        collective_call(world, lambda: begin_checkpoint(self.folder, step) if world.rank == 0 else part, slow=True)
        pipeline.gather_weights()
        check_replicas(world, state)
        snapshot = collective_call(world, lambda: take_snapshot(state, training, copies=self._background))
        self._saving = _BackgroundSave(
            part, world.rank, world.size, self._keep, lambda: _write(part, monitor, world.rank, step, snapshot)
        )
        if not self._background:
            self.wait()

    def wait(self) -> None:
        """Wait until the last save is complete on all ranks.

        Raises:
            InvalidInput: the save failed on a rank, or a weight is NaN. The earlier checkpoints are unchanged.
            PeerLost, PeerStalled: another rank is gone.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            world = self._pipeline.world
            collective_call(world, saving.finish_writing, slow=True)
            collective_call(world, saving.finish, slow=True)

    def leave_behind(self) -> Callable[[], None]:
        """Let the last save end without this object, if it can in a few seconds, because another rank may be gone.

        Returns:
            A function that waits for this.
        """
        saving, self._saving = self._saving, None
        if saving is None:
            return lambda: None
        timer = threading.Timer(GRACE_SECONDS, saving.hurry.set)
        timer.daemon = True
        timer.start()
        return lambda: saving.thread.join(GRACE_SECONDS)

    def load(self) -> TrainingState:
        """Give the pipeline the state of the newest valid checkpoint, and return the state of the training.

        Newer checkpoints that are damaged are skipped with a warning, and renamed.

        Raises:
            InvalidInput: there is no checkpoint, or it is of another model, optimizer, seed or mini-batch size.
            CheckpointCorrupt: every checkpoint is damaged.
            OutOfMemory: on this rank. The checkpoint is unchanged.
            PeerLost, PeerStalled: another rank is gone.
        """
        self.wait()
        world, monitor = self._pipeline.world, self._pipeline.monitor
        monitor.status.write("resume")
        # Rank 0 reads every byte of the checkpoint, which may take longer than the time limit for a silent rank.
        name = collective_call(world, lambda: newest_resumable(self.folder).name if world.rank == 0 else "", slow=True)
        self._pipeline.gather_weights()  # so that stages whose replicas hold shards have memory to read into
        with reporting_out_of_memory(monitor, _NOTHING_LOST):
            training = restore(world, self._pipeline.state, self.folder / world.exchange(name)[0])
        self._pipeline.resume(training.step, training.loss_scale)
        return training

    def __enter__(self) -> Self:
        """Return the checkpoints. At the end of the block, the last save is complete."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Wait for the last save. After an error wait only a few seconds, because other ranks may be gone."""
        if error is None:
            self.wait()
        elif self._saving is not None:
            self._saving.thread.join(GRACE_SECONDS)


def _write(part: Path, monitor: StatusReporter, rank: int, step: int, snapshot: Snapshot) -> None:
    # Faults that are injected into this phase strike here, in the writing thread.
    with reporting_out_of_memory(monitor):
        monitor.injector.strike("checkpoint", step, part)
        snapshot.check_numbers(step)
        write_rank_files(part, rank, snapshot)


class _BackgroundSave:
    """A thread that writes this rank's files and, on rank 0, completes the checkpoint once all ranks have written."""

    def __init__(self, part: Path, rank: int, ranks: int, keep: int, write: Callable[[], None]) -> None:
        self.part, self.rank, self.ranks, self.keep = part, rank, ranks, keep
        self.problem: Exception | None = None
        self.committed = False
        self.hurry = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(write,), daemon=True, name="graphpipe-checkpoint")
        self.thread.start()

    def finish_writing(self) -> None:
        """Wait until this rank's files are written."""
        self.hurry.set()
        self.thread.join()
        if self.problem is not None:
            raise self.problem

    def finish(self) -> None:
        """Complete the checkpoint on rank 0, unless its thread has done so. All ranks must have written."""
        if self.rank == 0 and not self.committed:
            self._commit()

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
            while self.rank == 0 and not self.committed and not self.hurry.wait(POLL_SECONDS):
                if all_ranks_written(self.part, self.ranks):
                    self._commit()
        except Exception as error:
            self.problem = error

    def _commit(self) -> None:
        commit_checkpoint(self.part, merge_rank_lists(self.part, self.ranks), self.keep)
        self.committed = True
