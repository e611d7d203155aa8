"""A stage whose replicas hold shards by torch's `fully_shard`: as one group of parameters, or one per layer.

FSDP's hooks around a forward of the whole stage are not used: they run once per step, around a module that computes
nothing, for the parameters that no layer has. A layer has hooks of its own.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast, final

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.run.device.tensor_memory import give_memory, take_memory
from graphpipe.run.weights import sharded_tensors
from graphpipe.run.weights.gradient_sum import sum_between_ranks
from graphpipe.run.weights.replica_sync import StageReplicas

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


@final
class FsdpStage:
    """One replica on this rank, the others on other ranks. The user's module has no memory while it trains.

    Args:
        replicas: of the stage.
        layers: submodules whose weights are gathered, and whose gradients are summed, whenever they compute. The
            weights of all others are gathered as one group.

    Raises:
        InvalidInput: trainable parameters of several dtypes.
    """

    def __init__(self, replicas: StageReplicas, layers: Sequence[nn.Module] = ()) -> None:
        self.replicas = replicas
        (self._module,), (parameters,) = replicas.modules, replicas.parameters
        # FSDP cannot shard a 0-d parameter, or one that several layers have, so every replica keeps it whole.
        several = _in_several(layers)
        self._summed = [each for each in parameters if not each.ndim or id(each) in several]
        sharded = {each for each in parameters if each.ndim and id(each) not in several}
        _check_dtypes(sharded, replicas.stage)
        self._whole = {parameter for parameter in self._module.parameters() if parameter not in sharded}
        inside = {parameter for layer in layers for parameter in layer.parameters()}
        self._together = [at for at, each in enumerate(self._module.parameters()) if each not in inside]
        pairs = zip(self._module.parameters(), replicas.original.parameters(), strict=True)
        self._published = [original for copy, original in pairs if copy in sharded]
        self._layers = _shard_layers(layers, self._whole, replicas)
        self._rest = _fully_shard(_Holder(self._module), self._whole, replicas)
        if self._layers:  # the first module that runs is the root of the others
            with torch.no_grad(), self._waiting():
                cast(Any, self._rest)(torch.zeros(1, device=replicas.world.device))
            self._rest.reshard()
        for each in sharded:  # others hold these objects, in whose place the module has shards now
            each.data = each.data.new_empty(0)
        self._free()

    def begin(self, *, gather_layers: bool) -> None:
        """Gather the weights, of the layers only if they are not to gather their own."""
        self._free()
        with self._waiting():
            self._rest.unshard()
            for layer in self._layers:
                layer.set_reshard_after_forward(not gather_layers)
                if gather_layers:
                    layer.unshard()
        if self._layers:
            self._rest.set_is_last_backward(False)

    def last_backward(self) -> None:
        """Let FSDP end its work at the end of the next backward."""
        self._rest.set_is_last_backward(True)

    def reduce(self) -> None:
        """Sum the gradients that no layer has summed. Each replica keeps its shard, and drops the gathered weights."""
        replicas = self.replicas
        self._fill_gaps()
        with self._waiting():
            flag = torch.zeros(1, device=replicas.world.device, requires_grad=True)
            cast(Any, self._rest)(flag).backward()
        sum_between_ranks(replicas.world, self._summed, replicas.ranks, replicas.stage)

    def end(self) -> None:
        """Drop the gathered weights."""
        for each in [*self._layers, self._rest]:
            each.reshard()

    def publish(self) -> None:
        """Copy the whole weights and the buffers to the user's module, until the next step."""
        original = [self.replicas.original]
        self._published = [give_memory(each, original) if each.is_meta else each for each in self._published]
        with self._waiting():
            sharded_tensors.publish(self._module, self.replicas.original)

    def adopt(self) -> None:
        """Copy this rank's shard of the weights, and the buffers, of the user's module."""
        sharded_tensors.adopt(self._module, self.replicas.original)

    def _free(self) -> None:
        original = [self.replicas.original]
        self._published = [each if each.is_meta else take_memory(each, original) for each in self._published]

    def _waiting(self) -> AbstractContextManager[None]:
        return self.replicas.world.waiting_for(self.replicas.ranks)

    def _fill_gaps(self) -> None:
        # FSDP reduces the parameters that have a gradient, which must be the same ones on all ranks.
        world, ranks, parameters = self.replicas.world, self.replicas.ranks, [*self._module.parameters()]
        together = [parameters[at] for at in self._together]
        trainable = [each for each in together if each.requires_grad and each not in self._whole]
        present = torch.tensor([float(parameter.grad is not None) for parameter in trainable], device=world.device)
        world.sum(present, ranks)
        for parameter, count in zip(trainable, present.tolist(), strict=True):
            if count and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def _in_several(layers: Sequence[nn.Module]) -> set[int]:
    # The identities of the parameters that more than one layer has.
    held = [id(parameter) for layer in layers for parameter in layer.parameters()]
    return {key for key in held if held.count(key) > 1}


def _shard_layers(layers: Sequence[nn.Module], whole: set[nn.Parameter], replicas: StageReplicas) -> list["FSDPModule"]:
    return [
        _fully_shard(layer, whole, replicas, again=True)
        for layer in layers
        if any(parameter not in whole for parameter in layer.parameters())
    ]


def _fully_shard(
    module: nn.Module, whole: set[nn.Parameter], replicas: StageReplicas, *, again: bool = False
) -> "FSDPModule":
    # Imported here because both take 0.1 s, and few trainings need them.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    group = replicas.world.group(replicas.ranks)
    # Torch confuses meshes with the same ranks and name, and would use one whose group is closed.
    name = f"replicas_{group.group_name}"
    mesh = DeviceMesh.from_group(group, replicas.world.device.type, mesh_dim_names=(name,))
    with replicas.world.waiting_for(replicas.ranks):
        fsdp = fully_shard(module, mesh=mesh, reshard_after_forward=again, ignored_params=whole)
    fsdp.set_gradient_divide_factor(1.0)  # losses are weighted by their share of the mini-batch instead
    fsdp.set_force_sum_reduction_for_comms(True)
    return fsdp


class _Holder(nn.Module):
    """Holds a module for FSDP and computes nothing, because only the hooks around its forward matter."""

    def __init__(self, held: nn.Module) -> None:
        super().__init__()
        self.held = held

    def forward(self, flag: Tensor) -> Tensor:
        return flag * 1.0


def _check_dtypes(parameters: Iterable[nn.Parameter], stage: str) -> None:
    dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in parameters if parameter.requires_grad}
    if len(dtypes) > 1:
        raise InvalidInput(
            f"its trainable parameters are of {len(dtypes)} dtypes: {', '.join(sorted(dtypes))}",
            where=f"stage '{stage}'",
            remedy="Give the stage's parameters one dtype, or choose an engine that does not shard them.",
        )
