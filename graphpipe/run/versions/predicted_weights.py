"""Predicted weights: a task computes with the weights that its stage is expected to have some updates later.

    F0 | predict version 1 from version 0, write it, F1, write version 0 back | B0 | U0 | ... | B1 (version 1)

The graph of a forward refers to the memory of the parameters, which never changes, so the backward reads what is there
when it runs: the newest weights, which the forward has predicted. Each device holds the newest weights and a prediction
from its first reader to its last.

Guan et al., PipeOptim (2023); Chen et al., SpecTrain (2018); Guan et al., XPipe (2019); each in section 3.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from graphpipe.model.saved_tensors import handle_saved_tensors
from graphpipe.run.versions.stage_weights import StageWeights
from graphpipe.run.versions.stored_versions import KEPT
from graphpipe.schedule import StageTask
from graphpipe.schedule.segments.weight_versions import WeightRead

Predict = Callable[[int], list[Tensor]]
"""Returns the trainable parameters of a stage as they are expected to be so many updates later, in new memory."""


@final
class PredictedWeights(StageWeights):
    """The weights of the policy `predict`.

    Args:
        parameters: of the replica.
        predict: predicts them.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], predict: Predict) -> None:
        super().__init__(parameters)
        self._predict = predict
        self._predicted: dict[WeightRead, list[Tensor]] = {}
        self._exchanged: list[Tensor] | None = None

    def start(self) -> None:
        """Nothing is predicted yet."""

    @contextmanager
    def holding(self, task: StageTask, read: WeightRead) -> Generator[None]:
        """Write the prediction into the parameters while a task runs."""
        if not read.ahead:
            assert read.version == self.newest, "only the newest weights are here, and predictions"
            with handle_saved_tensors(KEPT):
                yield
            return
        if read not in self._predicted:
            assert read.version == self.newest, "a prediction is made from the newest weights"
            self._predicted[read] = self._predict(read.ahead)
        self._exchange(self._predicted[read])
        with handle_saved_tensors(KEPT):
            yield
        self.end_task()
        if not self.is_read_again(read):
            del self._predicted[read]

    def end_task(self) -> None:
        """Write the newest weights back."""
        if (exchanged := self._exchanged) is not None:
            self._exchange(exchanged)
            self._exchanged = None

    def release(self) -> None:
        """Do nothing: graphs read what the update writes."""

    def updated(self) -> None:
        """Count the update."""
        self.newest += 1

    def end(self) -> None:
        """Drop all predictions."""
        self.end_task()
        self._predicted.clear()

    def _exchange(self, tensors: list[Tensor]) -> None:
        self._exchanged = tensors
        with torch.no_grad():
            for parameter, tensor in zip(self.parameters, tensors, strict=True):
                weights = parameter.clone()
                parameter.copy_(tensor)
                tensor.copy_(weights)
