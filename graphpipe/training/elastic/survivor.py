"""A rank that goes on with other ranks after it has lost a peer: what it keeps in memory, and when it can."""

import gc
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import clear_frames

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from graphpipe.errors import PeerLost, PeerStalled
from graphpipe.launch.regroup_files import Regrouping
from graphpipe.model.torch_private import own_buffers
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.checkpoints import Checkpoints
from graphpipe.run.device.precision import LossScale
from graphpipe.run.device.random_state import RandomState
from graphpipe.run.pipeline import Pipeline
from graphpipe.run.stage.shares.batch_share import GivenBatch
from graphpipe.run.weights.weight_update import (
    NamedOptimizer,
    NamedParameter,
    OptimizerFactory,
    ScheduledOptimizer,
    kind_of,
)
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.elastic.degraded_plan import why_not_reroute
from graphpipe.training.run_folder.metrics_log import StepMetrics
from graphpipe.training.task.data_reader import DataReader
from graphpipe.training.task.dataset_reader import DatasetReader

Reader = DataReader | DatasetReader
_CHANGING = ("optimizer", "buffers")
"""What a rank does while its weights are those of no step, or `Pipeline.steps` is one less than it has done."""


@dataclass(slots=True)
class RepeatableBatches:
    """The mini-batches of a training, of which the last one can be given again."""

    batches: Iterator[GivenBatch]
    given: int
    """The number of the last mini-batch that was given, from 1."""
    taken: int
    """The number of the last mini-batch that was read."""
    last: GivenBatch | None = None

    @staticmethod
    def after(steps: int, batches: Iterator[GivenBatch]) -> "RepeatableBatches":
        """Give the mini-batches that follow so many steps."""
        return RepeatableBatches(batches, steps, steps)

    def __iter__(self) -> Iterator[GivenBatch]:
        """Return the mini-batches."""
        return self

    def __next__(self) -> GivenBatch:
        """Return the next mini-batch: the last one again, or one that is read."""
        if self.given == self.taken or self.last is None:
            self.last = next(self.batches)
            self.taken += 1
        self.given += 1
        return self.last

    def return_to(self, steps: int) -> None:
        """Give the mini-batches that follow so many steps, at most one of which has been given."""
        assert 0 <= self.taken - steps <= 1
        self.given = steps


@dataclass(slots=True, kw_only=True)
class KeptState:
    """What a rank keeps from one generation of ranks to the next. The weights are in the user's module."""

    steps: int
    """Steps done."""
    optimizers: Sequence[ScheduledOptimizer]
    loss_scale: LossScale | None
    random: RandomState
    reader: Reader
    batches: RepeatableBatches
    history: list[StepMetrics]

    def optimizer(self, first: OptimizerFactory) -> NamedOptimizer:
        """Return what gives parameters their optimizer, with its state; `first` built it before the loss."""

        def build(named: Sequence[NamedParameter]) -> Optimizer:
            wanted = {id(each) for _, each in named}
            held = (each.optimizer for each in self.optimizers)
            return next(
                each for each in held if {id(one) for group in each.param_groups for one in group["params"]} == wanted
            )

        return NamedOptimizer(build, lambda name: kind_of(first, name))

    def schedule(self, optimizer: Optimizer) -> LRScheduler:
        """Return the learning-rate schedule of an optimizer."""
        found = next(each.scheduler for each in self.optimizers if each.optimizer is optimizer)
        assert found is not None, "a training has a schedule, which may be constant"
        return found

    def resume(self, pipeline: Pipeline) -> None:
        """Let a new pipeline of the same module continue."""
        pipeline.resume(self.steps, self.loss_scale)
        for scheduled in pipeline.state.optimizers:
            kept = next(each for each in self.optimizers if each.optimizer is scheduled.optimizer)
            if scheduled.average is not None and kept.average is not None:
                scheduled.average.load(kept.average.averages)
        self.batches.return_to(self.steps)
        self.random.restore()


@dataclass(slots=True)
class Survivor:
    """Whether this rank goes on after a loss, and what it has kept."""

    regrouping: Regrouping | None
    """None: this rank ends after a loss."""
    kept: KeptState | None = None
    """None unless a loss has ended the last generation in a state from which the next one can go on."""
    saved: Callable[[], None] | None = None
    """Waits until the last checkpoint of that generation is written, or cannot be."""

    @staticmethod
    def of(config: TrainConfig, plan: Plan) -> "Survivor":
        """Return the survivor of a training, which this process may become."""
        return Survivor(None if why_not_reroute(config, plan) else Regrouping.here())

    def goes_on(self, error: BaseException) -> bool:
        """Leave, and return whether the launcher lets this rank go on.

        Args:
            error: of the loss. Its frames are cleared, because a message in them would keep a connection open, and a
                peer at its other end waiting.
        """
        if self.regrouping is None or self.kept is None:
            return False
        cause: BaseException | None = error
        while cause is not None:
            clear_frames(cause.__traceback__)
            cause = cause.__cause__ or cause.__context__
        gc.collect()
        going_on = self.regrouping.leave(self.kept.steps)
        if not going_on and self.saved is not None:
            self.saved()
        return going_on

    @contextmanager
    def training(
        self,
        pipeline: Pipeline,
        checkpoints: Checkpoints,
        reader: Reader,
        batches: RepeatableBatches,
        history: list[StepMetrics],
        steps: int,
    ) -> Generator["BufferCopies"]:
        """Keep the state if a peer is lost in the block, unless this rank is in the middle of an update.

        Args:
            pipeline: that trains.
            checkpoints: of the pipeline.
            reader: of the data.
            batches: that it reads.
            history: the steps done.
            steps: of the whole training. After the last one, nothing is left to go on with.

        Yields:
            The buffers of this rank's stages, to be updated after each step.
        """
        self.kept = None
        regrouping = self.regrouping if pipeline.world.kind.outlives_peers else None
        if regrouping is None:
            yield BufferCopies([])
            return
        state = pipeline.state
        buffers = BufferCopies([state.programs[stage].module for stage in state.hosted])
        with regrouping.in_training():
            try:
                yield buffers
            except (PeerLost, PeerStalled):
                if pipeline.monitor.last_status.phase not in _CHANGING and pipeline.steps < steps:
                    buffers.restore()
                    self.saved = checkpoints.leave_behind()
                    self.kept = KeptState(
                        steps=pipeline.steps,
                        optimizers=state.optimizers,
                        loss_scale=pipeline.state.loss_scale,
                        random=RandomState.now(),
                        reader=reader,
                        batches=batches,
                        history=history,
                    )
                else:
                    regrouping.stay()
                raise


class BufferCopies:
    """Copies of the buffers that forwards may change, such as BatchNorm's statistics, as they were after a step.

    All buffers are copied, because torch does not count every write: BatchNorm changes its statistics unnoticed.

    Args:
        modules: that have the buffers.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = [each for module in modules for each in module.modules()]
        self._copies: list[dict[str, Tensor | None]] = [{} for _ in self._modules]
        self.update()

    @torch.no_grad()
    def update(self) -> None:
        """Copy the present values, into the memory of the copies before where they fit."""
        self._copies = [
            {name: _copy_of(buffer, before.get(name)) for name, buffer in own_buffers(module).items()}
            for module, before in zip(self._modules, self._copies, strict=True)
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Put the copies back. A buffer that was made since is removed, and one of another shape is replaced."""
        for module, copies in zip(self._modules, self._copies, strict=True):
            present = own_buffers(module)
            for name in [*present]:
                if name in copies:
                    present[name] = _copy_of(copies[name], present[name])
                else:
                    delattr(module, name)


def _copy_of(tensor: Tensor | None, memory: Tensor | None) -> Tensor | None:
    """Return a copy of a tensor: `memory`, if that has the same shape and dtype."""
    if tensor is None:
        return None
    if memory is None or memory.shape != tensor.shape or memory.dtype != tensor.dtype:
        return tensor.clone()
    return memory.copy_(tensor)
