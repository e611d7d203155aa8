"""Old weights from the newest ones and a moving average of the updates, instead of stored versions.

    F3 (version 1) | U1 makes 2 | U2 makes 3, and the average step A | B3: write 3 + 2 A, B3, write 3 back | U3

The graph of a forward refers to the memory of the parameters, which never changes, so the backward reads what is there
when it runs. After update k of a segment, with a delay of d updates:

    A_k = A_{k-1} + (W_{k-1} - W_k - A_{k-1}) / min(k, d)        W_{k-j} is taken to be W_k + j A_k

The average is of all updates while there are at most d of them. Then the first version is exact. Each device holds the
newest weights, the average, and for a backward or an update a copy of the newest to return to: three versions, however
long the delay is.

Unnikrishnan and Parhi, LayerPipe2 (2025), reconstruct old weights from an average of gradients. Here it is of the steps
themselves, so that it holds for every optimizer.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from graphpipe.model.saved_tensors import handle_saved_tensors
from graphpipe.run.versions.stage_weights import StageWeights
from graphpipe.run.versions.stored_versions import KEPT
from graphpipe.schedule import StageTask
from graphpipe.schedule.segments.weight_versions import WeightRead


@final
class AveragedWeights(StageWeights):
    """The weights of the policy `moving-average`.

    Args:
        parameters: of the replica.
        delay: the most updates between a forward of the stage and the update of its mini-batch.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], delay: int) -> None:
        super().__init__(parameters)
        self._delay = delay
        self._average: list[Tensor] = []
        self._newest: list[Tensor] | None = None
        """While a backward or an update runs: the weights before it."""

    def start(self) -> None:
        """There are no updates to average yet."""
        self._average = []

    @contextmanager
    def holding(self, task: StageTask, read: WeightRead) -> Generator[None]:
        """Write the reconstructed weights into the parameters while a task runs."""
        assert read.version == self.newest, "only the newest weights are here, and what is reconstructed from them"
        if read.ahead:
            self._newest = self._copies()
            with torch.no_grad():
                for parameter, step in zip(self.parameters, self._average, strict=True):
                    parameter.copy_(parameter + step * -read.ahead)
        with handle_saved_tensors(KEPT):
            yield
        self.end_task()

    def end_task(self) -> None:
        """Write the newest weights back."""
        if (newest := self._newest) is not None:
            with torch.no_grad():
                for parameter, kept in zip(self.parameters, newest, strict=True):
                    parameter.copy_(kept)
            self._newest = None

    def release(self) -> None:
        """Keep the weights before the update, to find its step."""
        if self._delay:
            self._newest = self._copies()

    def updated(self) -> None:
        """Take the step of the update into the average."""
        self.newest += 1
        if (before := self._newest) is None:
            return
        self._newest = None
        if not self._average:
            self._average = [torch.zeros_like(weight) for weight in before]
        count = min(self.newest, self._delay)
        with torch.no_grad():
            for average, old, parameter in zip(self._average, before, self.parameters, strict=True):
                average += old.sub_(parameter).sub_(average).div_(count)

    def end(self) -> None:
        """Drop the average."""
        self.end_task()
        self._average = []

    def _copies(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters]
