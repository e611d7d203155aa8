"""The state of a rank between two segments, to return to if a segment fails: its updates cannot be taken back."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphpipe.run.stage.stage_replica import StageReplica
from graphpipe.run.weights.weight_update import ScheduledOptimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainedState:
    """Copies of weights, buffers and optimizer state, in the memory of the host."""

    tensors: list[tuple[Tensor, Tensor]]
    """Weights, buffers and averages of weights, each with its copy."""
    optimizers: list[tuple[ScheduledOptimizer, dict[str, Any], dict[str, Any] | None]]
    """The optimizers, each with its state and that of its learning-rate schedule."""

    @staticmethod
    def of(replicas: Sequence[StageReplica], optimizers: Sequence[ScheduledOptimizer]) -> "DrainedState":
        """Copy the state of replicas and optimizers."""
        held = [tensor for it in replicas for tensor in (*it.module.parameters(), *it.module.buffers())]
        held += [tensor for each in optimizers if each.average for tensor in each.average.averages]
        distinct = {id(tensor): tensor for tensor in held}.values()
        return DrainedState(
            tensors=[(tensor, _copy(tensor)) for tensor in distinct],
            optimizers=[
                (
                    scheduled,
                    _copied(scheduled.optimizer.state_dict()),
                    None if scheduled.scheduler is None else copy.deepcopy(scheduled.scheduler.state_dict()),
                )
                for scheduled in optimizers
            ],
        )

    def restore(self) -> None:
        """Bring the state back. What the parameters refer to stays their memory."""
        with torch.no_grad():
            for tensor, kept in self.tensors:
                tensor.copy_(kept)
        for scheduled, state, schedule in self.optimizers:
            scheduled.optimizer.load_state_dict(state)
            if scheduled.scheduler is not None and schedule is not None:
                scheduled.scheduler.load_state_dict(schedule)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _copied(state: Any) -> Any:
    if isinstance(state, Tensor):
        return _copy(state)
    if isinstance(state, dict):
        return {key: _copied(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_copied(value) for value in state]
    return copy.deepcopy(state)
