"""A layer on one device: its module, the weights that its tasks read there, and its recorded backward."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor, nn

from graphpipe.model.halves.recorded_backward import RecordedBackward
from graphpipe.run.stage.stage_replica import StageReplica

Received: TypeAlias = tuple[int, str]
"""A received value, by its edge and its name."""


@dataclass(slots=True, kw_only=True)
class LayerCopy:
    """A layer on one device of this rank. On the device of the forward, its module is that of the stage."""

    number: int
    """Of the layer."""
    device: int
    replica: StageReplica
    """The layer's program. On other devices than that of the forward, it is a copy."""
    kinds: frozenset[str]
    """The kinds of tasks of the layer that the device does."""
    recorded: RecordedBackward[Received] | None = None
    """None before the first micro-batch, and where the layer is not trained."""
    modes: tuple[bool, ...] = ()
    """The modes of the submodules when the backward was recorded."""
    versions: dict[int, list[Tensor]] = field(default_factory=dict[int, list[Tensor]])
    """The memory of all parameters, by updates since the segment began."""

    @property
    def name(self) -> str:
        """The name of the layer."""
        return self.replica.stage_name

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """All parameters of the layer."""
        return self.replica.parameters

    @property
    def trained(self) -> list[nn.Parameter]:
        """The trainable ones."""
        return [parameter for parameter in self.parameters if parameter.requires_grad]

    @property
    def newest(self) -> int:
        """The newest version that is here."""
        return max(self.versions)

    def begin(self) -> None:
        """Begin a segment with the weights that the parameters have."""
        self.versions = {0: [parameter.data for parameter in self.parameters]}

    def put(self, version: int) -> None:
        """Give the parameters the memory of a version."""
        for parameter, memory in zip(self.parameters, self.versions[version], strict=True):
            parameter.data = memory

    def arrive(self, version: int, weights: Sequence[Tensor]) -> None:
        """Take the weights of a new version, which another device has computed."""
        fresh = iter(weights)
        before = self.versions[self.newest]
        self.versions[version] = [
            next(fresh) if parameter.requires_grad else memory
            for parameter, memory in zip(self.parameters, before, strict=True)
        ]

    def release(self, oldest: int) -> None:
        """Prepare an update in place: the newest weights get new memory if a task from version `oldest` on reads them.

        Args:
            oldest: the oldest version that a task here will still read.
        """
        self.put(self.newest)
        if oldest <= self.newest:
            for parameter in self.trained:
                parameter.data = parameter.data.clone()

    def updated(self) -> None:
        """Note the memory of a new version, which the optimizer has written."""
        self.versions[self.newest + 1] = [parameter.data for parameter in self.parameters]

    def forget_before(self, oldest: int) -> None:
        """Drop the versions before one, but never the newest."""
        oldest = min(oldest, self.newest)
        for version in [each for each in self.versions if each < oldest]:
            del self.versions[version]

    def end(self) -> None:
        """Keep only the newest weights."""
        if self.versions:
            self.put(self.newest)
        self.versions.clear()

    def clear(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def modes_now(self) -> tuple[bool, ...]:
        """Return the modes of the layer's submodules."""
        return tuple(module.training for module in self.replica.module.modules())


def moved_to(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a module on a device, with memory for what it has without values."""
    held = (*module.parameters(), *module.buffers())
    if any(each.is_meta or not each.untyped_storage().nbytes() for each in held if each.numel()):
        return module.to_empty(device=device)
    return module.to(device)
