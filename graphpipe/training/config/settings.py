"""The configuration of a training, as `graphpipe train CONFIG.toml key=value ...` reads it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_document, write_document
from graphpipe.graph import Precision
from graphpipe.planning.settings import PlanSection
from graphpipe.run.faults.fault import parse_faults
from graphpipe.run.weights.check_sync import check_sync
from graphpipe.run.weights.registry import DEFAULT_SYNC
from graphpipe.training.config.torch_names import (
    as_argument,
    check_arguments,
    check_builds,
    optimizer_class,
    scheduler_class,
    takes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """How the model is trained."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    batch_size: int
    """Samples per mini-batch."""
    steps: int | None = None
    """Optimizer steps."""
    epochs: int | None = None
    """Passes over the data. With `steps` too, training ends when either is reached."""
    seed: int = 0
    """Seed of the initial weights, the order of the data and dropout."""
    initial_weights: str = ""
    """Where the weights come from: `init` for new ones, or the path of a safetensors file, a folder of Hugging Face, a
    checkpoint or a run. Each rank reads only its own. The default is what the task says (docs/large-models.md)."""
    clip_norm: float | None = None
    """Largest 2-norm of the whole model's gradients. By default gradients are not clipped."""
    precision: Precision = "fp32"
    """Precision of forwards and losses. `bf16` and `fp16` use torch's autocast, and leave weights, gradients and the
    optimizer unchanged. With `fp16` the loss is scaled, and a step whose gradients overflow changes only the scale."""
    engine: str = DEFAULT_SYNC
    """Name of the replica synchronisation, which sums gradients over the replicas of a stage (docs/training.md lists
    them). Plans count the memory of whole weights, gradients and optimizer state on every replica."""
    shard_optimizer: bool = False
    """Shard the optimizer's state over replicas (ZeRO-1). Plans count the unsharded state on every replica."""
    checkpoint_every: int | None = None
    """Steps between checkpoints. One more is made after the last step. By default no checkpoints are made."""
    checkpoint_async: bool = False
    """Write checkpoints while training continues, from a copy of the weights and the optimizer's state on the host. By
    default training waits, and there is no copy."""
    keep: int = 2
    """Number of checkpoints to keep."""
    eval_every: int | None = None
    """Steps between evaluations of the task's held-out samples. One more is made after the last step."""
    segment_steps: int = 32
    """Steps after which the pipeline drains, if the plan's weight policy does not flush. It also drains for a
    checkpoint. The mini-batches of all these steps are in memory at once."""
    workers: int = 0
    """Processes of each rank that read samples of the task's data set ahead. 0 reads them in the rank itself. Ranks
    that read nothing start none."""
    prefetch: int = 2
    """Mini-batches that each of these processes reads ahead."""
    loggers: tuple[str, ...] = ()
    """Loggers of loss, throughput, memory and evaluations, besides metrics.jsonl: `tensorboard` and `wandb`, which need
    the extras of the same names, `jsonl`, and those of installed packages."""
    check: bool = True
    """Before the first step of a new run, train a few samples in plain PyTorch and as the plan cuts and divides them,
    and refuse to train if they differ (docs/checks.md). `--no-check` sets this to false."""
    faults: tuple[str, ...] = ()
    """Faults to inject, such as `kill@rank2:step3:phase=send` (see `graphpipe.run.faults.injector`)."""

    def __post_init__(self) -> None:
        _at_least_one("train.batch_size", self.batch_size)
        if self.steps is None and self.epochs is None:
            raise InvalidInput("neither steps nor epochs is given", where="train", remedy="Give one, or both.")
        _at_least_one("train.keep", self.keep)
        _at_least_one("train.segment_steps", self.segment_steps)
        _not_negative("train.workers", self.workers)
        _at_least_one("train.prefetch", self.prefetch)
        counts = {"steps": self.steps, "epochs": self.epochs, "checkpoint_every": self.checkpoint_every}
        counts["eval_every"] = self.eval_every
        for name, number in counts.items():
            _at_least_one(f"train.{name}", 1 if number is None else number)
        check_sync(self.engine, shard_optimizer=self.shard_optimizer, section="train.")
        parse_faults(self.faults)
        if self.clip_norm is not None:
            _positive("train.clip_norm", self.clip_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """The optimizer, unless the task gives one."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str = "adamw"
    """A class of `torch.optim`, in any case: adamw, sgd, Adafactor, Muon, and so on."""
    lr: float = 1e-3
    """Learning rate."""
    weight_decay: float = 0.0
    momentum: float = 0.0
    """For optimizers with an argument of this name, such as sgd."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of the class, such as `betas = [0.9, 0.95]` or `nesterov = true`."""

    def __post_init__(self) -> None:
        _positive("optimizer.lr", self.lr)
        _not_negative("optimizer.weight_decay", self.weight_decay)
        _not_negative("optimizer.momentum", self.momentum)
        kind = optimizer_class(self.name)
        check_arguments(kind, self.arguments, "optimizer")
        for name, value in (("weight_decay", self.weight_decay), ("momentum", self.momentum)):
            if value and not takes(kind, name):
                what = f"is {value}, and {kind.__name__} has none"
                raise InvalidInput(what, where=f"optimizer.{name}", remedy="Leave it out.")
        for name in ("lr", "weight_decay", "momentum"):
            if name in self.arguments:
                raise InvalidInput(f"has {name}", where="optimizer.arguments", remedy=f"Set optimizer.{name}.")
        check_builds(kind, self.given)

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of the class, beside the parameters."""
        kind = optimizer_class(self.name)
        own = {"lr": self.lr, "weight_decay": self.weight_decay, "momentum": self.momentum}
        further = {name: as_argument(value) for name, value in self.arguments.items()}
        return {name: value for name, value in own.items() if takes(kind, name)} | further


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """The learning-rate schedule."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str = "constant"
    """`constant`, `cosine`, which decreases to zero at the last step, or a class of `torch.optim.lr_scheduler`."""
    warmup_steps: int = 0
    """Steps in which the learning rate rises from zero."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of the class, such as `step_size = 30`. By default `T_max`, `total_steps` and `max_lr` are those of the
    training."""

    def __post_init__(self) -> None:
        _not_negative("lr_schedule.warmup_steps", self.warmup_steps)
        if self.of_torch:
            check_arguments(scheduler_class(self.name), self.arguments, "lr_schedule")
        elif self.arguments:
            what = f"'{self.name}' takes no '{next(iter(self.arguments))}'"
            raise InvalidInput(what, where="lr_schedule.arguments")

    @property
    def of_torch(self) -> bool:
        """Whether it is a class of torch, whose present rate follows from its state."""
        return self.name not in ("constant", "cosine")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The run's folder, its processes, and how it recovers."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    directory: str = "runs"
    """Each run makes a new folder in this directory."""
    name: str = ""
    """Name of the run's folder, before its number. The default is the configuration file's name, or `run`."""
    port: int = 0
    """Port on which local ranks connect. 0 takes any free port."""
    timeout_seconds: float = 300.0
    """How long a rank waits for another rank that neither answers nor ends."""
    profile_steps: int = 0
    """Steps that torch's profiler records on every rank. `--torch-profiler steps=3` sets this."""
    elastic: bool = False
    """If a rank is lost, continue on the remaining devices (see `graphpipe.training.elastic.supervisor`)."""
    reroute: bool = True
    """If an elastic run loses a rank whose stages have other replicas, these take over its samples in the same
    processes, without a checkpoint. Otherwise, and if False, all ranks start again from the last checkpoint."""
    avoid_slow: bool = True
    """If a rank becomes slow, an elastic run plans around its device, if that saves more time than a restart takes."""
    most_recoveries: int = 10
    """An elastic run ends at the next loss after this many recoveries."""
    readmit_seconds: float = 60.0
    """Seconds after a loss until the device is probed. If it answers, it is used again after the next checkpoint. Each
    further loss of the same device doubles this. 0 never uses a lost device again."""

    def __post_init__(self) -> None:
        _positive("run.timeout_seconds", self.timeout_seconds)
        if self.name and (Path(self.name).name != self.name or self.name == ".."):
            raise InvalidInput(
                f"is '{self.name}', which is not inside run.directory", where="run.name", remedy="Write a plain name."
            )
        counts = {
            "most_recoveries": self.most_recoveries,
            "readmit_seconds": self.readmit_seconds,
            "profile_steps": self.profile_steps,
        }
        for name, number in counts.items():
            _not_negative(f"run.{name}", number)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    task: str
    """`file.py:function` (relative to `folder`) or `package.module:function`. The function returns a Task."""
    cluster: str
    """A preset such as `local:4`, or a TOML file."""
    folder: str = "."
    """The folder of the task's file. The default is the configuration file's folder."""
    train: TrainSettings
    plan: PlanSection = field(default_factory=PlanSection)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    lr_schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        if self.plan.inference:
            remedy = "Leave it out, or plan for `graphpipe infer`."
            raise InvalidInput("is true, but a configuration is for training", where="plan.inference", remedy=remedy)
        if self.run.elastic and self.train.checkpoint_every is None:
            raise InvalidInput(
                "an elastic run continues from checkpoints, but no checkpoints are made",
                where="run.elastic",
                remedy="Set train.checkpoint_every=STEPS.",
            )

    def save(self, path: str | Path) -> None:
        """Write the configuration with all defaults as a JSON document."""
        write_document(path, "train", self)

    @staticmethod
    def load(path: str | Path) -> "TrainConfig":
        """Read a configuration written by `save`.

        Raises:
            InvalidInput: the file is not a valid configuration of this schema version.
        """
        return read_document(path, "train", lambda body: from_body(TrainConfig, body, str(path)))


def with_options(config: TrainConfig, *, faults: Sequence[str] = (), elastic: bool = False) -> TrainConfig:
    """Return a configuration with more faults, which is elastic if `elastic` or the configuration says so.

    Raises:
        InvalidInput: a fault is malformed, or the run is elastic without checkpoints.
    """
    return replace(
        config,
        train=replace(config.train, faults=(*config.train.faults, *faults)),
        run=replace(config.run, elastic=config.run.elastic or elastic),
    )


def _at_least_one(name: str, number: int) -> None:
    if number < 1:
        raise InvalidInput(f"is {number}, must be at least 1", where=name)


def _positive(name: str, number: float) -> None:
    if not (math.isfinite(number) and number > 0):
        raise InvalidInput(f"is {number}, must be positive and finite", where=name)


def _not_negative(name: str, number: float) -> None:
    if not (math.isfinite(number) and number >= 0):
        wanted = "must not be negative" if isinstance(number, int) else "must be finite, not negative"
        raise InvalidInput(f"is {number}, {wanted}", where=name)
