"""The engine `fsdp2`: between steps, every replica holds a shard of the weights, gradients and optimizer state.

    begin: all-gather the weights | the mini-batch | reduce: reduce-scatter the gradients, drop the weights

torch's `fully_shard`, with one group of parameters per stage and without its hooks around forwards: replicas may differ
in how many forwards they do (evaluation), and a stage may compute forwards again, split its backward, or change its
graph with the shapes of the inputs. Our backwards add to the gradients of the gathered weights; FSDP's hooks then run
once, around a module that does nothing, and find them there.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from graphpipe.errors import InvalidInput
from graphpipe.run.comm.world import World
from graphpipe.run.weights import sharded_tensors as shards
from graphpipe.run.weights.gradient_sum import sum_between_ranks
from graphpipe.run.weights.replica_sync import Engine


@final
class Fsdp2(Engine):
    """One replica on this rank, the others on other ranks.

    Args:
        world: this rank.
        ranks: of the replicas.
        module: of the replica here, no other's: its parameters become shards.
        original: the user's module, of which `module` is a copy; it stays as it is.
        parameters: of `module`, those that the replicas reduce among themselves; others stay whole.
        stage: its name.

    Raises:
        InvalidInput: trainable parameters of several dtypes.
    """

    def __init__(
        self,
        world: World,
        ranks: Sequence[int],
        module: nn.Module,
        original: nn.Module,
        parameters: Sequence[nn.Parameter],
        stage: str,
    ) -> None:
        self._world, self._ranks, self._module, self._original = world, tuple(ranks), module, original
        self._stage = stage
        # FSDP has no shards of a single number: every replica keeps it whole.
        self._numbers = [parameter for parameter in parameters if not parameter.ndim]
        cut = {parameter for parameter in parameters if parameter.ndim}
        _check_dtypes(cut, stage)
        self._whole = {parameter for parameter in module.parameters() if parameter not in cut}
        group = world.group(ranks)
        # Torch takes meshes of the same ranks and name for the same, and goes on with one whose group is gone.
        name = f"replicas_{group.group_name}"
        mesh = DeviceMesh.from_group(group, world.device.type, mesh_dim_names=(name,))
        with world.waiting_for(ranks):
            holder = fully_shard(
                _Holder(module),
                mesh=mesh,
                reshard_after_forward=False,
                ignored_params=self._whole,
            )
        self._fsdp: FSDPModule = holder
        self._fsdp.set_gradient_divide_factor(1.0)  # losses are weighed by their share of the mini-batch instead
        self._fsdp.set_force_sum_reduction_for_comms(True)

    def begin(self) -> None:
        """Gather the weights."""
        with self._world.waiting_for(self._ranks):
            self._fsdp.unshard()

    def last_backward(self, roots: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        del roots
        return nullcontext()

    def reduce(self) -> None:
        """Sum the gradients; each replica keeps its shard, and drops the gathered weights."""
        self._fill_gaps()
        with self._world.waiting_for(self._ranks):
            flag = torch.zeros(1, device=self._world.device, requires_grad=True)
            cast(Any, self._fsdp)(flag).backward()
        sum_between_ranks(self._world, self._numbers, self._ranks, self._stage)

    def end(self) -> None:
        """Drop the gathered weights."""
        self._fsdp.reshard()

    def publish(self) -> None:
        """Give the user's module the whole weights."""
        with self._world.waiting_for(self._ranks):
            shards.publish(self._module, self._original)

    def adopt(self) -> None:
        """Take this rank's shard of the user's module."""
        shards.adopt(self._module, self._original)

    def _fill_gaps(self) -> None:
        # FSDP reduces what has a gradient, which must be the same on all ranks: zeros where only others have one.
        trainable = [each for each in self._module.parameters() if each.requires_grad and each not in self._whole]
        present = torch.tensor([float(each.grad is not None) for each in trainable], device=self._world.device)
        self._world.sum(present, self._ranks)
        for parameter, count in zip(trainable, present.tolist(), strict=True):
            if count and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


class _Holder(nn.Module):
    """Holds a module for FSDP, and computes nothing: only the hooks around its forward matter."""

    def __init__(self, held: nn.Module) -> None:
        super().__init__()
        self.held = held

    def forward(self, flag: Tensor) -> Tensor:
        return flag * 1.0


def _check_dtypes(parameters: Iterable[nn.Parameter], stage: str) -> None:
    found = {str(parameter.dtype).removeprefix("torch.") for parameter in parameters if parameter.requires_grad}
    if len(found) > 1:
        raise InvalidInput(
            f"its trainable parameters are of {len(found)} dtypes: {', '.join(sorted(found))}",
            where=f"stage '{stage}'",
            remedy="FSDP shards parameters of one dtype together: choose engine='ddp' or 'allreduce'.",
        )
