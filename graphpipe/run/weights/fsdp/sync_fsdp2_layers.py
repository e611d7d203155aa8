"""Synchronisation `fsdp2-layers`: as `fsdp2`, but a replica gathers the weights of one layer after the other.

    forward of a layer:   all-gather its weights | compute | drop them
    backward of a layer:  all-gather its weights | compute | reduce-scatter its gradients, drop both

A layer is a submodule that the stage calls. Torch's `fully_shard` does this in hooks around each of them, and on a GPU
gathers the next layer while one computes. So a replica holds the whole weights of about two layers, and never whole
gradients of the stage, but gathers in every micro-batch. In an evaluation replicas may run different numbers of
forwards, so there all weights are gathered first.
"""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, final

from torch import Tensor, fx, nn

from graphpipe.run.weights.fsdp.fsdp_stage import FsdpStage
from graphpipe.run.weights.replica_sync import ReplicaSync, StageReplicas, SyncTraits


@final
class Fsdp2Layers(ReplicaSync):
    """One replica on this rank, the others on other ranks (see `FsdpStage`).

    A micro-batch must give gradients to the same parameters on every replica.
    """

    traits: ClassVar = SyncTraits(
        shards_parameters=True, shards_optimizer=True, split_backward=False, exchanges_in_tasks=True
    )

    def __init__(self, replicas: StageReplicas) -> None:
        super().__init__(replicas)
        self._stage = FsdpStage(replicas, layers_of(replicas.modules[0]))

    def begin(self) -> None:
        """Gather the weights that no layer has."""
        self._stage.begin(gather_layers=False)

    def begin_evaluation(self) -> None:
        """Gather all weights."""
        self._stage.begin(gather_layers=True)

    def in_task(self) -> AbstractContextManager[None]:
        """Name the replicas if one of them is lost during an exchange."""
        return self.replicas.world.waiting_for(self.replicas.ranks)

    @contextmanager
    def last_backward(self, roots: Sequence[Tensor]) -> Generator[None]:
        """Let FSDP end its work after this backward."""
        del roots
        self._stage.last_backward()
        yield

    def reduce(self) -> None:
        """Sum the gradients that no layer has summed."""
        self._stage.reduce()

    def end(self) -> None:
        """Drop the gathered weights."""
        self._stage.end()

    def publish(self) -> None:
        """Copy the whole weights and the buffers to the user's module, until the next step."""
        self._stage.publish()

    def adopt(self) -> None:
        """Copy this rank's shard of the weights, and the buffers, of the user's module."""
        self._stage.adopt()


def layers_of(module: nn.Module) -> list[nn.Module]:
    """Return the submodules that a stage calls, each once; of a stage without a graph, its children."""
    if not isinstance(module, fx.GraphModule):
        return [*module.children()]
    called = [module.get_submodule(str(node.target)) for node in module.graph.nodes if node.op == "call_module"]
    return [*{id(each): each for each in called}.values()]
