"""Keeps the copies of layers on other devices like the layers of the user's model, between steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from graphpipe.model.torch_private import write_count
from graphpipe.run.comm.broadcast import copy_modes, copy_state, state_tensors
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import World
from graphpipe.run.rounds.layer_copy import LayerCopy
from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTask
from graphpipe.schedule.gradient_tasks.rounds import Rounds


@dataclass(slots=True, kw_only=True)
class WeightSharing:
    """The layers of this rank whose module is the user's, and the copies that must have their values.

    All ranks call its methods alike.
    """

    rounds: Rounds
    placement: RankPlacement
    world: World
    layers: Mapping[tuple[int, int], LayerCopy]
    """The layers of this rank, by number and device."""
    modes: Mapping[int, torch.nn.Module]
    """A module of each layer with the present modes, by number."""
    seen: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """The memory of each weight of the user's model, and how often it was written, when the last step ended."""

    def begin(self) -> None:
        """Give the copies the values of the user's model, if some were changed since the last step, and its modes."""
        for layer in self.layers.values():
            if layer.replica.module is not self.modes[layer.number]:
                copy_modes(self.modes[layer.number], layer.replica.module)
        changed = torch.tensor([float(self._now() != self.seen)], device=self.world.device)
        self.world.sum(changed)
        if float(changed):
            self._share()

    def end(self) -> None:
        """Note that copies and user's model have the same values."""
        self.seen = self._now()

    def _now(self) -> dict[str, tuple[int, int]]:
        return {
            f"{number} {name}": (tensor.data_ptr(), write_count(tensor))
            for (number, _), layer in self.layers.items()
            if "F" in layer.kinds
            for name, tensor in layer.replica.module.named_parameters()
        }

    def _share(self) -> None:
        for number in range(len(self.rounds.work.layers)):
            devices = {task: device for task, device in self.rounds.device_of.items() if task.layer == number}
            source = devices.pop(LayerTask("F", number))
            for target in sorted({*devices.values()} - {source}):
                self._copy(number, source, target)

    def _copy(self, number: int, source: int, target: int) -> None:
        giver, taker = self.placement.rank_of[source], self.placement.rank_of[target]
        own = self.world.rank
        if own == giver == taker:
            copy_state(self.layers[number, source].replica.module, self.layers[number, target].replica.module)
        elif own == giver:
            for tensor in state_tensors(self.layers[number, source].replica.module):
                with self.world.waiting_for(taker):
                    self.world.p2p.send(tensor.detach().contiguous(), taker).wait()
        elif own == taker:
            for tensor in state_tensors(self.layers[number, target].replica.module):
                with self.world.waiting_for(giver), torch.no_grad():
                    buffer = torch.empty_like(tensor, memory_format=torch.contiguous_format)
                    self.world.p2p.receive(buffer, giver).wait()
                    tensor.copy_(buffer)
