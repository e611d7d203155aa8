"""The options of a pipeline: all that a plan, a model, a loss and an optimizer leave open."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from graphpipe.errors import InvalidInput
from graphpipe.graph import Precision
from graphpipe.model.autocast import check_precision
from graphpipe.model.capture.capture import Captured
from graphpipe.plans import Plan
from graphpipe.plans.stage import Predictor, WeightPolicy, check_policy_names
from graphpipe.plans.verify import verify
from graphpipe.run.faults.fault import Fault
from graphpipe.run.initial_weights.weight_source import WeightSource
from graphpipe.run.step.balance import Balance
from graphpipe.run.weights.check_sync import check_sync
from graphpipe.run.weights.registry import DEFAULT_SYNC
from graphpipe.run.weights.weight_update import SchedulerFactory
from graphpipe.schedule.segments.planned_versions import with_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """How a pipeline trains. Every rank is given the same options, except for `device`.

    Raises:
        InvalidInput: a name is unknown, a number is out of range, or two options exclude each other.
    """

    initial_weights: WeightSource | None = None
    """Where the weights of this rank's stages come from (see `gp.Weights`). None: from the model, and those that are on
    the meta device as `gp.Weights.init()` makes them, seeded by `seed` and the name of each parameter."""
    lr_scheduler: SchedulerFactory | None = None
    """Builds a learning-rate schedule for an optimizer; stepped once per step. ReduceLROnPlateau is stepped by
    `evaluated(value)` of each of `Pipeline.state.optimizers`, on all ranks alike."""
    balance: Balance | None = None
    """Put the samples of each mini-batch into an order in which micro-batches and replicas have about the same work
    (`docs/balance.md`). Says how much work a sample is: an input's name, a function of the inputs by name, or several.
    None keeps the given order."""
    average_decay: float | None = None
    """Keep exponential averages of the weights with this decay, for `Pipeline.averaged`; None keeps none."""
    engine: str = DEFAULT_SYNC
    """Name of the replica synchronisation, which sums gradients over the replicas of a stage (see
    `graphpipe.run.weights.registry`). If it shards parameters, all ranks must call `Pipeline.gradients`. Stages that
    shard everything by the plan (`Stage.state`) take `fsdp2` or `fsdp2-layers`, unless this one does as much."""
    shard_optimizer: bool = False
    """Shard the optimizer's state over the replicas of every stage (ZeRO-1). False leaves it to the plan."""
    captured: Captured | None = None
    """The model as it was captured for the plan, if at hand. None captures the model again, which takes seconds."""
    compile: bool = False
    """Compile the stages by `torch.compile`, layer by layer. The first step runs eagerly, because it checks what the
    stages compute, and so do evaluations."""
    precision: Precision = "fp32"
    """Precision of forwards and losses: `fp32`, or `bf16` or `fp16` by autocast. Weights and gradients keep their
    dtype. With `fp16` the loss is scaled, and a step whose gradients overflow changes only the scale."""
    clip_norm: float | None = None
    """The largest 2-norm of the whole model's gradients; larger gradients are scaled down to it. None clips nothing."""
    seed: int = 0
    """With step, stage, micro-batch and replica it determines all random numbers, wherever a stage runs."""
    device: torch.device | str | None = None
    """Where this rank computes. None is the accelerator that its launcher gives it (`cuda:0`), or else the CPU."""
    alone: bool = False
    """This process plays all devices of the plan, also if it was started as one of several ranks."""
    check_finite: bool = True
    """Check every stage's outputs, and its gradients before the update, for NaN and infinity, so that the error names
    the first stage and micro-batch. If False, a step is refused only if its loss is not finite."""
    weights: WeightPolicy | None = None
    """Which weights a micro-batch sees, if that is not what the plan says: `flush`, `stash`, `vertical-sync`,
    `double-buffer`, `moving-average` or `predict`. The plan's stages then get the samples in flight and the versions
    that this policy needs (`Pipeline.plan` has them). None keeps the plan's own policy."""
    predictor: Predictor = ""
    """Predictor of the policy `predict`, if `weights` is given: `pipeoptim`, `spectrain` or `xpipe`."""
    rollback: bool = True
    """Keep a copy of weights and optimizer state, in the host's memory, while a segment runs, so that a segment which
    fails changes nothing. If False, such a segment closes the pipeline. It concerns only plans whose weight policy does
    not flush."""
    record: bool = False
    """Record when everything happens, for `Pipeline.trace`; costs a barrier per step."""
    debug: bool = False
    """Assert that no replica has more samples in flight than the plan allows."""
    timeout_seconds: float = 300.0
    """How long to wait for a peer that neither answers nor dies."""
    position: Callable[[], str] | None = None
    """Returns where in the data this rank is, such as `epoch 2, mini-batch 7`. Ranks compare it before every step."""
    faults: tuple[Fault, ...] = ()
    """Faults to inject, of all ranks."""
    fault_log: Path | None = None
    """The file that lists the faults that have struck. They do not strike again, and new ones are appended."""

    def __post_init__(self) -> None:
        check_sync(self.engine, shard_optimizer=self.shard_optimizer)
        check_precision(self.precision)
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise InvalidInput(
                f"is {self.clip_norm}, must be positive", where="clip_norm", remedy="None clips nothing."
            )
        if self.average_decay is not None and not 0 < self.average_decay < 1:
            raise InvalidInput(f"is {self.average_decay}, must be between 0 and 1", where="average_decay")
        self._check_weights()
        if not -(2**63) <= self.seed < 2**63:
            raise InvalidInput(f"is {self.seed}, must fit in 64 bits", where="seed")
        if not 0 < self.timeout_seconds < math.inf:
            raise InvalidInput(f"is {self.timeout_seconds}, must be positive and finite", where="timeout_seconds")

    def policy_of(self, plan: Plan) -> Plan:
        """Return the plan under the weight policy of the options, or the same plan if they do not give one.

        Raises:
            InvalidInput: the plan's stages do not allow the policy.
            Infeasible: they do not fit in memory with their versions.
        """
        if self.weights is None or (self.weights, self.predictor) == (plan.weights, plan.predictor):
            return plan
        planned = with_policy(plan, self.weights, self.predictor)
        verify(planned)
        return planned

    def _check_weights(self) -> None:
        check_policy_names("flush" if self.weights is None else self.weights, self.predictor)
        if (self.weights == "predict") != bool(self.predictor):
            is_missing = "is missing, and weights is 'predict'"
            raise InvalidInput(
                is_missing if not self.predictor else f"is '{self.predictor}', and weights is '{self.weights}'",
                where="predictor",
                remedy="Choose pipeoptim, spectrain, xpipe with weights='predict', and none otherwise.",
            )
