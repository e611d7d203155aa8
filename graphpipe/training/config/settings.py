"""The configuration of a training: what `graphpipe train CONFIG.toml key=value ...` reads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from graphpipe.errors import InvalidInput
from graphpipe.files.json_document import from_body, read_document, write_document
from graphpipe.run.device.precision import PrecisionName
from graphpipe.run.faults.fault import parse_faults
from graphpipe.run.weights.replica_sync import EngineName, check_engine


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """How the pipeline is planned."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    planner: str = "graphpipe"
    """Or `spp`, for a chain of stages."""
    costs: str = "profile"
    """`profile` measures the model's operators here; `estimate` computes; else a file of `graphpipe profile`."""
    micro_batch: int | None = None
    """Only this micro-batch size; by default all are searched."""
    mixed_micro_batches: bool = False
    """Let stages differ in micro-batch size."""
    schedule: str | None = None
    """`1f1b`, `gpipe`, `zb-h1`, `zb-auto`; `auto` takes the one with the shortest predicted step. By default `auto` for
    planner graphpipe, `1f1b` for others and where devices share cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """How long, and with what randomness."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    batch_size: int
    """Samples of a mini-batch."""
    steps: int | None = None
    """Optimizer steps."""
    epochs: int | None = None
    """Passes over the data; with `steps` too, training ends with whichever ends first."""
    seed: int = 0
    """Of the initial weights, the order of the data and dropout."""
    clip_norm: float | None = None
    """Largest 2-norm of the whole model's gradients."""
    precision: PrecisionName = "fp32"
    """Of forwards and losses: `bf16` and `fp16` are torch's autocast, and weights, gradients and the optimizer stay as
    they are. With `fp16` the loss is scaled, and a step whose gradients overflow changes the scale alone."""
    engine: EngineName = "allreduce"
    """How the replicas of a stage sum their gradients: `allreduce` after the last backward, `ddp`
    (DistributedDataParallel) while it runs, `fsdp2` (`fully_shard`) into shards of weights, gradients and optimizer
    state. Plans count the memory of whole ones."""
    shard_optimizer: bool = False
    """Replicas share out the optimizer's state (ZeRO-1), as `fsdp2` does by itself. Plans count all of it on each."""
    checkpoint_every: int | None = None
    """Steps between checkpoints, with one more at the end; by default none is made."""
    keep: int = 2
    """Checkpoints that stay."""
    loggers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Where loss, throughput and memory go besides metrics.jsonl; each needs the extra of its name."""
    faults: tuple[str, ...] = ()
    """To be injected, such as `kill@rank2:step3:phase=send` (see `graphpipe.run.faults.injector`); by default none."""

    def __post_init__(self) -> None:
        _at_least_one("train.batch_size", self.batch_size)
        if self.steps is None and self.epochs is None:
            raise InvalidInput("neither steps nor epochs is given", where="train", remedy="Give one, or both.")
        _at_least_one("train.keep", self.keep)
        counts = {"steps": self.steps, "epochs": self.epochs, "checkpoint_every": self.checkpoint_every}
        for name, number in counts.items():
            _at_least_one(f"train.{name}", 1 if number is None else number)
        check_engine(self.engine, shard_optimizer=self.shard_optimizer, section="train.")
        parse_faults(self.faults)
        if self.clip_norm is not None:
            _positive("train.clip_norm", self.clip_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """Which optimizer."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: Literal["adamw", "adam", "radam", "sgd"] = "adamw"
    lr: float = 1e-3
    """Learning rate."""
    weight_decay: float = 0.0
    momentum: float = 0.0
    """Of sgd only."""

    def __post_init__(self) -> None:
        _positive("optimizer.lr", self.lr)
        _not_negative("optimizer.weight_decay", self.weight_decay)
        _not_negative("optimizer.momentum", self.momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """How the learning rate changes."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: Literal["constant", "cosine"] = "constant"
    """`cosine` falls to zero at the last step."""
    warmup_steps: int = 0
    """Steps in which it rises from zero."""

    def __post_init__(self) -> None:
        _not_negative("lr_schedule.warmup_steps", self.warmup_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Where results go, and where the ranks meet."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    directory: str = "runs"
    """Every run gets a new folder in it."""
    name: str = ""
    """Of the folder; by default the configuration file's."""
    port: int = 0
    """Where local ranks meet; 0 is any free one."""
    timeout_seconds: float = 300.0
    """How long a rank waits for another that neither answers nor dies."""
    profile_steps: int = 0
    """Steps that torch's profiler records on every rank; `--torch-profiler steps=3` sets it."""
    elastic: bool = False
    """Go on with the devices that are left when a rank is lost (see `graphpipe.training.elastic.supervisor`)."""
    most_recoveries: int = 10
    """After so many an elastic run gives up."""
    readmit_seconds: float = 60.0
    """How long after its loss a device is looked at, to be taken back at the next checkpoint if it answers; doubled
    with each further loss of it. 0 takes none back."""

    def __post_init__(self) -> None:
        _positive("run.timeout_seconds", self.timeout_seconds)
        if self.name and (Path(self.name).name != self.name or self.name == ".."):
            raise InvalidInput(
                f"is '{self.name}', which would leave run.directory", where="run.name", remedy="Write a plain name."
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
    """`file.py:function` (beside the configuration file) or `package.module:function`; it returns a Task."""
    cluster: str
    """A preset such as `local:4`, or a TOML file."""
    folder: str = "."
    """Where the task's file is looked for; by default the configuration file's folder."""
    train: TrainSettings
    plan: PlanSettings = field(default_factory=PlanSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    lr_schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        if self.run.elastic and self.train.checkpoint_every is None:
            raise InvalidInput(
                "an elastic run goes on from checkpoints, and none are made",
                where="run.elastic",
                remedy="Set train.checkpoint_every=STEPS.",
            )

    def save(self, path: str | Path) -> None:
        """Write the configuration, every default spelled out, as a JSON document."""
        write_document(path, "train", self)

    @staticmethod
    def load(path: str | Path) -> "TrainConfig":
        """Read a configuration written by `save`.

        Raises:
            InvalidInput: the file is not a valid configuration of this schema version.
        """
        return read_document(path, "train", lambda body: from_body(TrainConfig, body, str(path)))


def with_options(config: TrainConfig, *, faults: Sequence[str] = (), elastic: bool = False) -> TrainConfig:
    """Return a configuration with further faults, elastic if this or the configuration says so.

    Raises:
        InvalidInput: a fault that is none, or elastic without checkpoints.
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
