"""Updates one stage's weights on this rank, after each mini-batch of a segment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphpipe.plans import Plan
from graphpipe.run.stage.stage_replica import StageReplica
from graphpipe.run.step.step_summary import counted_gradients, norm_of
from graphpipe.run.versions.stage_weights import StageWeights
from graphpipe.run.weights.weight_update import ScheduledOptimizer
from graphpipe.schedule import StageTask
from graphpipe.schedule.segments.weight_versions import WeightRead


def _nothing() -> None:
    pass


@dataclass(slots=True, kw_only=True)
class StageUpdate:
    """The replicas of one stage in this process, and the optimizer of the first of them, the leader."""

    plan: Plan
    replicas: Sequence[StageReplica]
    weights: Sequence[StageWeights]
    """The weights of each replica."""
    optimizer: ScheduledOptimizer | None
    """The optimizer of the leader; None if nothing is trained."""
    with_norms: bool
    """Whether the norm of the gradients is recorded, to find those that are not finite."""
    mini_batches: int = 0
    """Number of mini-batches of the segment."""
    done: int = 0
    """Number of updates since the segment began."""
    after: Callable[[], None] = _nothing
    """A function that is called after every update."""
    norms: list[Tensor | float] = field(default_factory=list[Tensor | float])
    """The 2-norm of the gradients that the leader counts, by mini-batch. A GPU may still compute it."""

    def begin(self, reads: Mapping[StageTask, WeightRead], mini_batches: int) -> None:
        """Begin a segment.

        Args:
            reads: what each task of the stage reads.
            mini_batches: of the segment.
        """
        self.mini_batches, self.done = mini_batches, 0
        self.norms.clear()
        self.clear()
        for weights in self.weights:
            weights.begin(reads)

    def run(self, mini_batch: int) -> None:
        """Update the weights of all replicas here, unless the update of another one of them has done it already."""
        if mini_batch < self.done:
            return
        assert mini_batch == self.done, f"update {mini_batch} follows {self.done} updates"
        self.done += 1
        leader, *_ = self.replicas
        gradients = counted_gradients(self.plan, leader) if self.with_norms else []
        self.norms.append(norm_of(gradients) if gradients else 0.0)
        for weights in self.weights:
            weights.release()
        if self.optimizer is not None:
            self.optimizer.step()
            self._copy_to_followers()
        for weights in self.weights:
            weights.updated()
        if self.done < self.mini_batches:  # The last gradients can be looked at.
            self.clear()
        self.after()

    def clear(self) -> None:
        """Drop all gradients."""
        for replica in self.replicas:
            for parameter in replica.parameters:
                parameter.grad = None

    def end(self) -> None:
        """Keep only the newest weights."""
        for weights in self.weights:
            weights.end()

    def _copy_to_followers(self) -> None:
        leader, *followers = self.weights
        with torch.no_grad():
            for follower in followers:
                for own, theirs in zip(follower.parameters, leader.parameters, strict=True):
                    own.copy_(theirs)
