"""The configuration of a training, as `graphpipe train CONFIG.toml key=value ...` reads it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_document, write_document
from graphpipe.graph import Precision
from graphpipe.planning.settings import PlanSection
from graphpipe.run.faults.fault import parse_faults
from graphpipe.run.weights.check_sync import check_sync
from graphpipe.run.weights.registry import DEFAULT_SYNC
from graphpipe.training.config.evaluation_settings import EvaluationSettings
from graphpipe.training.config.numbers import at_least_one, not_negative, positive
from graphpipe.training.config.optimizer_settings import OptimizerSettings, ScheduleSettings


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
    compile: bool = False
    """Compile the stages by `torch.compile`, from the second step on (docs/compile.md). Plans predict eager stages,
    unless `plan.costs` names a file of `graphpipe profile --compile`."""
    gradients_apart: Literal["", "flush", "stash"] = ""
    """Compute the gradients of layers on other devices than their forwards, where that is faster
    (docs/asynchronous/layerpipe.md). `stash` updates weights late, `flush` after every mini-batch. By default the
    stages of the plan compute them."""
    engine: str = DEFAULT_SYNC
    """Name of the replica synchronisation, which sums gradients over the replicas of a stage (docs/training.md lists
    them). Plans count the memory of whole weights, gradients and optimizer state on every replica."""
    shard_optimizer: bool = False
    """Shard the optimizer's state over replicas (ZeRO-1). Plans count the unsharded state on every replica."""
    balance: tuple[str, ...] = ()
    """Put the samples of each mini-batch into an order in which micro-batches and replicas have about the same work.
    The names of inputs say how much work a sample is, or `task`, by the task's `loads` (docs/balance.md)."""
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
    """Loggers of loss, throughput, memory and evaluations, besides metrics.jsonl: `tensorboard`, `wandb` and `mlflow`,
    which need the extras of the same names, `jsonl`, and those of installed packages."""
    callbacks: tuple[str, ...] = ()
    """Callbacks of installed packages, which are called between the steps on every rank (docs/loop.md)."""
    check: bool = True
    """Before the first step of a new run, train a few samples in plain PyTorch and as the plan cuts and divides them,
    and refuse to train if they differ (docs/checks.md). `--no-check` sets this to false."""
    faults: tuple[str, ...] = ()
    """Faults to inject, such as `kill@rank2:step3:phase=send` (see `graphpipe.run.faults.injector`)."""

    def __post_init__(self) -> None:
        at_least_one("train.batch_size", self.batch_size)
        if self.steps is None and self.epochs is None:
            raise InvalidInput("neither steps nor epochs is given", where="train", remedy="Give one, or both.")
        at_least_one("train.keep", self.keep)
        at_least_one("train.segment_steps", self.segment_steps)
        not_negative("train.workers", self.workers)
        at_least_one("train.prefetch", self.prefetch)
        counts = {"steps": self.steps, "epochs": self.epochs, "checkpoint_every": self.checkpoint_every}
        counts["eval_every"] = self.eval_every
        for name, number in counts.items():
            at_least_one(f"train.{name}", 1 if number is None else number)
        check_sync(self.engine, shard_optimizer=self.shard_optimizer, section="train.")
        parse_faults(self.faults)
        if self.clip_norm is not None:
            positive("train.clip_norm", self.clip_norm)


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
        positive("run.timeout_seconds", self.timeout_seconds)
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
            not_negative(f"run.{name}", number)


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
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        if self.train.eval_every is None and (self.evaluation.decides or self.lr_schedule.follows_evaluations):
            setting = "evaluation" if self.evaluation.decides else "lr_schedule.name"
            what = "follows the evaluations of the training, which makes none"
            raise InvalidInput(what, where=setting, remedy="Set train.eval_every=STEPS.")
        if self.plan.balance and not self.train.balance:
            remedy = "Set train.balance, and the plan follows."
            raise InvalidInput("is true, but the training balances nothing", where="plan.balance", remedy=remedy)
        if self.plan.inference:
            remedy = "Leave it out, or plan for `graphpipe infer`."
            raise InvalidInput("is true, but a configuration is for training", where="plan.inference", remedy=remedy)
        if self.run.elastic and self.train.gradients_apart:
            what = f"is '{self.train.gradients_apart}', and a run that loses a device cannot place its gradients again"
            raise InvalidInput(what, where="train.gradients_apart", remedy="Leave out run.elastic.")
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
