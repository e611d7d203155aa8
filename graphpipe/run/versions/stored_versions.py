"""Versions of a stage's weights, each kept from its update to its last reader.

An update gives every parameter new memory if some task has yet to read the old version (`p.data = p.data.clone()`),
and the optimizer then changes only the new memory. A task reads an old version with the parameter's memory exchanged.
So nothing is copied but at an update, and a version that nothing reads again is overwritten in place.

    F0 (version 0) | F1 (version 0) | B0 | U0 makes version 1 | F2 (version 1) | B1 (version 0, then dropped) | U1

The autograd graph of a forward refers to the memory of its version: saved-tensor hooks make it do so, because without
them it would refer to the parameter, and read whatever memory that has later. A backward gets its version back in the
parameters too. Recomputation in a backward (the plan's, or torch.utils.checkpoint in the user's model) needs it there.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import final

from torch import Tensor, nn

from graphpipe.model.saved_tensors import SavedTensor, handle_saved_tensors
from graphpipe.run.versions.stage_weights import StageWeights, memory_of
from graphpipe.schedule import StageTask
from graphpipe.schedule.segments.weight_versions import WeightRead


class KeptTensors:
    """A `SavedTensorHandler` that keeps every saved tensor.

    With it, autograd saves the memory that a parameter has now. It also lets an optimizer write into memory that a
    graph refers to, which autograd otherwise refuses when the graph is used.
    """

    def on_save(self, saved: SavedTensor) -> None:
        """Keep it."""

    def on_read(self, saved: SavedTensor) -> None:
        """It is there."""


KEPT = KeptTensors()


@final
class StoredVersions(StageWeights):
    """The versions of `stash`, `vertical-sync` and `double-buffer`.

    Narayanan et al., PipeDream (SOSP 2019), section 3.3; Narayanan et al., PipeDream-2BW (ICML 2021), section 3.1.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__(parameters)
        self._versions: dict[int, list[Tensor]] = {}

    def start(self) -> None:
        """Note the memory of version 0."""
        self._versions = {0: memory_of(self.parameters)}

    @contextmanager
    def holding(self, task: StageTask, read: WeightRead) -> Generator[None]:
        """Give the parameters the memory of a version, while a task runs."""
        old = read.version != self.newest
        if old:
            self._put(self._versions[read.version])
        with handle_saved_tensors(KEPT):
            yield
        if old:
            self._put(self._versions[self.newest])
        if not self.is_read_again(read) and old:
            del self._versions[read.version]

    def release(self) -> None:
        """Give the parameters memory of their own, if the newest version will be read after the update."""
        if self.left[WeightRead(self.newest)] > 0:
            self._put([weight.clone() for weight in self._versions[self.newest]])
        else:
            del self._versions[self.newest]

    def updated(self) -> None:
        """Note the memory of the new version."""
        self.newest += 1
        self._versions[self.newest] = memory_of(self.parameters)

    def end(self) -> None:
        """Drop all versions but the newest, which the parameters get back."""
        if (newest := self._versions.get(self.newest)) is not None:
            self._put(newest)
        self._versions.clear()

    def _put(self, memory: list[Tensor]) -> None:
        for parameter, tensor in zip(self.parameters, memory, strict=True):
            parameter.data = tensor
