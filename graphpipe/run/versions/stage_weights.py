"""The weights of one stage replica in a segment: every task reads the version that the policy gives it.

begin | reading(F0.0) ... reading(B0.0) ... release, the optimizer steps, updated | ... | end
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn

from graphpipe.schedule import StageTask
from graphpipe.schedule.segments.weight_versions import WeightRead


class StageWeights(ABC):
    """The weights that the tasks of one replica read.

    Between two tasks, the parameters have the newest weights.

    Args:
        parameters: of the replica. Those that are frozen have one version.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.newest = 0
        """Updates since the segment began."""
        self.left: Counter[WeightRead] = Counter()
        """How many tasks of the segment have yet to read these weights."""
        self._reads: Mapping[StageTask, WeightRead] = {}

    def begin(self, reads: Mapping[StageTask, WeightRead]) -> None:
        """Begin a segment.

        Args:
            reads: what each task of the replica reads.
        """
        self._reads = reads
        self.left = Counter(reads.values())
        self.newest = 0
        self.start()

    def reading(self, task: StageTask) -> AbstractContextManager[None]:
        """Return a context in which a task computes with the weights that it must read."""
        return nullcontext() if task.kind == "U" else self.holding(task, self._reads[task])

    def is_read_again(self, read: WeightRead) -> bool:
        """Record that a task has read these weights, and return whether another one will."""
        self.left[read] -= 1
        return self.left[read] > 0

    @abstractmethod
    def start(self) -> None:
        """Take note of the first version of a segment."""

    @abstractmethod
    def holding(self, task: StageTask, read: WeightRead) -> AbstractContextManager[None]:
        """Return a context in which the parameters have these weights; its end is one read."""

    @abstractmethod
    def release(self) -> None:
        """Make the parameters' memory free to be overwritten, right before an update."""

    @abstractmethod
    def updated(self) -> None:
        """Take note of the new weights, right after an update."""

    @abstractmethod
    def end(self) -> None:
        """Forget all weights but the newest. A task that was interrupted has left others in the parameters."""


def memory_of(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the present memory of parameters. It stays with the returned tensors if a parameter gets other memory."""
    return [parameter.data for parameter in parameters]
