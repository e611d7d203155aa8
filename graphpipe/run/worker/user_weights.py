"""The user's model between steps: what is changed there in place is brought to where the pipeline computes.

Stages compute with the tensors of the user's model, with three exceptions:

    other replicas of a stage in this process   are copies, and take its values before each step and evaluation
    slices of layers that a plan splits         are copied to and from the whole, where that has memory here
    shards                                      take the values that `Pipeline.gather_weights` has brought, if a step
                                                follows it

Values that are written where the model has no memory, or before they were gathered, are refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.model.stage_program import StageProgram
from graphpipe.run.comm.broadcast import copy_state
from graphpipe.run.device.tensor_memory import times_written
from graphpipe.run.weights.parameter_slices import adopt_slices, publish_slices, slices_of
from graphpipe.run.worker.worker import StageWorker


@dataclass(slots=True)
class UserWeights:
    """The weights and buffers of the user's model, and those that this rank computes with."""

    model: nn.Module | None
    """None if the pipeline was built from stage programs."""
    programs: Sequence[StageProgram]
    """The stages of the model."""
    worker: StageWorker
    gathered: bool = False
    """Whether shards have been gathered in the user's model since the last step."""
    written: dict[str, int] = field(default_factory=dict[str, int])
    """How often each tensor was written whose values are elsewhere."""

    @staticmethod
    def of(model: nn.Module | None, programs: Sequence[StageProgram], worker: StageWorker) -> "UserWeights":
        """Return those of a pipeline that was just built."""
        made = UserWeights(model, programs, worker)
        made.give()
        return made

    def take(self) -> None:
        """Bring the values of the user's model to where this rank computes. Called before a step or an evaluation.

        Raises:
            InvalidInput: something was changed whose values are elsewhere.
        """
        for name, times in self._elsewhere():
            if self.written.get(name, times) != times:
                raise InvalidInput(
                    f"'{name}' was changed between steps, or its `data` was taken for that, and this rank computes "
                    "with a copy of it",
                    where="step",
                    remedy="Call pipeline.sync_model() before you change it, on every rank.",
                )
        if self.model is not None:
            adopt_slices(self.model, self.programs)
        if self.gathered:
            for sync in self.worker.syncs.values():
                sync.adopt()
            self.gathered = False
        for leader in self.worker.leaders():
            for follower in self.worker.of_stage(leader.slot.stage)[1:]:
                copy_state(leader.module, follower.module)

    def give(self) -> None:
        """Bring values that this rank has changed to the user's model, but for shards."""
        if self.model is not None:
            publish_slices(self.model, self.programs)
        self.written = dict(self._elsewhere())

    def gather(self) -> None:
        """Bring shards there too; all ranks call this."""
        for sync in self.worker.syncs.values():
            sync.publish()
        self.gathered = True
        self.give()

    def changed(self) -> None:
        """Say that the weights here were replaced, so that those of the user's model are older."""
        self.gathered = False
        self.give()

    def _elsewhere(self) -> Iterator[tuple[str, int]]:
        # The names and versions of the tensors of this rank's stages that it does not compute with.
        for leader in self.worker.leaders():
            program = self.programs[leader.slot.stage]
            if leader.module is not program.module and not self.gathered:
                own = (*program.module.named_parameters(), *program.module.named_buffers())
                yield from ((program.parameter_names.get(name, name), times_written(each)) for name, each in own)
            if self.model is not None:
                names = {piece.parameter for piece, _ in slices_of(program)}
                wholes = ((name, self.model.get_parameter(name)) for name in sorted(names))
                yield from ((name, times_written(each)) for name, each in wholes if each.is_meta)
