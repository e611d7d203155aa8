"""Synchronisation `fsdp2`: between steps each replica holds one shard of the weights, gradients and optimizer state.

    begin: all-gather the weights | the mini-batch | reduce: reduce-scatter the gradients, drop the weights

It uses torch's `fully_shard` with one group of parameters per stage, and without its hooks around forwards. Replicas
may run different numbers of forwards (evaluation), and a stage may compute forwards again, split its backward, or
change its graph with the shapes of the inputs. Backwards here add to the gradients of the gathered weights. FSDP's
hooks then run once, around a module that computes nothing, and find the gradients there.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, cast, final

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.run.device.tensor_memory import give_memory, take_memory
from graphpipe.run.weights import sharded_tensors
from graphpipe.run.weights.gradient_sum import sum_between_ranks
from graphpipe.run.weights.replica_sync import ReplicaSync, StageReplicas, SyncTraits

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


@final
class Fsdp2(ReplicaSync):
    """One replica on this rank, the others on other ranks. The user's module has no memory while it trains.

    Raises:
        InvalidInput: trainable parameters of several dtypes.
    """

    traits: ClassVar = SyncTraits(shards_parameters=True, shards_optimizer=True)

    def __init__(self, replicas: StageReplicas) -> None:
        super().__init__(replicas)
        (self._module,), (parameters,) = replicas.modules, replicas.parameters
        # FSDP cannot shard a 0-d parameter, so every replica keeps it whole.
        self._scalars = [parameter for parameter in parameters if not parameter.ndim]
        sharded = {parameter for parameter in parameters if parameter.ndim}
        _check_dtypes(sharded, replicas.stage)
        self._whole = {parameter for parameter in self._module.parameters() if parameter not in sharded}
        pairs = zip(self._module.parameters(), replicas.original.parameters(), strict=True)
        self._published = [original for copy, original in pairs if copy in sharded]
        self._fsdp = _fully_shard(self._module, self._whole, replicas)
        self._free()

    def begin(self) -> None:
        """Gather the weights."""
        self._free()
        with self._waiting():
            self._fsdp.unshard()

    def reduce(self) -> None:
        """Sum the gradients. Each replica keeps its shard, and drops the gathered weights."""
        replicas = self.replicas
        self._fill_gaps()
        with self._waiting():
            flag = torch.zeros(1, device=replicas.world.device, requires_grad=True)
            cast(Any, self._fsdp)(flag).backward()
        sum_between_ranks(replicas.world, self._scalars, replicas.ranks, replicas.stage)

    def end(self) -> None:
        """Drop the gathered weights."""
        self._fsdp.reshard()

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
        world, ranks = self.replicas.world, self.replicas.ranks
        trainable = [
            parameter
            for parameter in self._module.parameters()
            if parameter.requires_grad and parameter not in self._whole
        ]
        present = torch.tensor([float(parameter.grad is not None) for parameter in trainable], device=world.device)
        world.sum(present, ranks)
        for parameter, count in zip(trainable, present.tolist(), strict=True):
            if count and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def _fully_shard(module: nn.Module, whole: set[nn.Parameter], replicas: StageReplicas) -> "FSDPModule":
    # Imported here because both take 0.1 s, and few trainings need them.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    group = replicas.world.group(replicas.ranks)
    # Torch confuses meshes with the same ranks and name, and would use one whose group is closed.
    name = f"replicas_{group.group_name}"
    mesh = DeviceMesh.from_group(group, replicas.world.device.type, mesh_dim_names=(name,))
    with replicas.world.waiting_for(replicas.ranks):
        fsdp = fully_shard(_Holder(module), mesh=mesh, reshard_after_forward=False, ignored_params=whole)
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
