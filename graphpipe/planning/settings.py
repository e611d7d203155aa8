"""What a plan is asked for: one declaration for `gp.plan`, `[plan]` of a configuration and the command line."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from pydantic import ConfigDict

from graphpipe.costs import Loads
from graphpipe.costs.sample_load import parse_loads
from graphpipe.errors import InvalidInput, nearest
from graphpipe.planners.budget import Budget
from graphpipe.planners.problem.limits import EFFORTS, NORMAL, QUICK, THOROUGH, SearchEffort
from graphpipe.planners.problem.options import InferenceObjective, Objective, OffloadTo
from graphpipe.plans.stage import Predictor, WeightPolicy, check_policy_names

SplitChoice = Literal["none", "auto"] | Sequence[str]
"""`none`, `auto`, or the names of operators."""
NO_SPLIT, AUTO_SPLIT = "none", "auto"
EffortChoice = Literal["quick", "normal", "thorough"] | float
"""How long to search, by name or in seconds."""
TensorChoice = int | Literal["auto"]
"""How many devices share a replica; `auto`: what shortens the step, stage by stage."""


def _planners() -> Iterable[str]:
    from graphpipe.planners.registry import all_planners  # Ranks read configurations too, and start without planners.

    return all_planners()


def _schedules() -> Iterable[str]:
    from graphpipe.planning.choose_schedule import schedule_choices

    return schedule_choices()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """What a plan is asked for, beside the graph, its costs, the cluster and the mini-batch.

    A field is declared here and nowhere else. `gp.plan` takes it as a keyword, a configuration as `plan.NAME`, and the
    command line as an option whose help is the first paragraph of the field's docstring. The metadata of a field are
    for the command line: `metavar`, `option` (its name, if it is another one) and `known` (names that it lists).
    `planning.honoured` says which plans follow which fields.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    planner: str = field(default="graphpipe", metadata={"metavar": "P", "known": _planners})
    """Name of the planner. Those of other systems make chains of stages."""
    micro_batch: int | None = field(default=None, metadata={"metavar": "N"})
    """The only micro-batch size to try, in samples. By default all sizes are searched."""
    mixed_micro_batches: bool = False
    """Let each stage have its own micro-batch size, under the schedule kFkB."""
    objective: Objective | InferenceObjective | None = None
    """What to minimise. `step`, the default, is the simulated step with warm-up, drain, messages and update.
    `bottleneck`, the published objective, is the slowest stage, and only micro-batch sizes are compared by the step.
    Plans for inference take `throughput`, the default, or `latency`.

    `throughput` ranks by the busiest device or link of a full pipeline. `latency` ranks by the time from an empty
    pipeline to the last answer of a mini-batch."""
    schedule: str | None = field(default=None, metadata={"metavar": "S", "known": _schedules})
    """Name of the schedule. `auto` takes the one with the shortest step. It is the default of graphpipe, but for the
    published objective and for devices that share cores. Other defaults are `1f1b`.

    `auto` may use all the available memory. GraphPipe's own planners improve their plans under the schedule, and give
    stages different micro-batch sizes if that is faster. Planners that choose a schedule themselves keep it under
    `1f1b`."""
    loads: Loads | tuple[str, ...] | None = field(default=None, metadata={"metavar": "NAME=LOADS", "option": "--load"})
    """How much work samples are for some operators, such as `vision=1:0.5,4:0.5` for shares of samples by load, or
    `vision=1,1,4` for the loads of some samples. The name is a submodule, an operator, a pattern or a model input. By
    default every sample is the same work.

    Loads are multiples of the sample that the costs were found for. In Python they may be a mapping,
    `{"vision": {1: 0.5, 4: 0.5}}`. Plans are for the expected loads, and fit in memory for the largest."""
    balance: bool = False
    """Plan for mini-batches whose samples are put into an order in which micro-batches and replicas have about the same
    loads, as `train.balance` does."""
    split: str | Sequence[str] = field(default=NO_SPLIT, metadata={"metavar": "OPS"})
    """Operators to split, so that their parts can be in different stages: names with commas in between (`NAME:4`
    splits by outputs in 4 parts, `NAME:rows4` splits an embedding by rows), or `auto` for those whose split shortens
    the step."""
    inference: bool = False
    """Plan only forwards, for `graphpipe infer`, without gradients and optimizer state."""
    weights: WeightPolicy = field(default="flush", metadata={"metavar": "W"})
    """Which weights a micro-batch sees. With `flush` the pipeline drains after every mini-batch. The other policies
    do not flush: `stash`, `vertical-sync`, `double-buffer`, `moving-average` and `predict`.

    Plans of the other policies are ranked by their steady period (docs/asynchronous.md). Training drains them after
    `train.segment_steps` steps."""
    predictor: Predictor = field(default="", metadata={"metavar": "P"})
    """How the policy `predict` predicts weights: `pipeoptim`, `spectrain` or `xpipe`."""
    stages_per_device: int | None = field(default=None, metadata={"metavar": "N"})
    """The most stages that a device may host. With 1, every stage has devices of its own, as in plans of the
    baselines. The default is 4, or 1 if devices share cores."""
    tensor: TensorChoice = field(default=1, metadata={"metavar": "T"})
    """How many devices of a node share each replica of a stage (tensor parallelism): a number for all stages, or `auto`
    for what shortens the step or fits, stage by stage.

    The default is 1: a device computes a replica alone. With another number, only operators with a layout are shared
    out (docs/tensor.md)."""
    effort: EffortChoice = field(default="normal", metadata={"metavar": "E"})
    """How long graphpipe searches: `quick`, `normal`, `thorough`, or a number of seconds, after which the best plan so
    far is taken.

    `quick` leaves out small changes, plans in which devices host several stages, and plans on parts of a cluster.
    `normal` leaves the best plan of a small problem by random changes, and improves it again. `thorough` does so for
    all problems, and searches once more with wider limits. A number of seconds makes all these searches in turn. The
    first one always ends, so that there is a plan."""
    sequence_parallel: bool = False
    """Let the devices that share a replica also divide the sequence between the layers that they share, such as in
    norms, dropouts and residuals (sequence parallelism).

    It saves activations. The same bytes travel, in all-gathers and reduce-scatters."""
    offload_to: OffloadTo = "host"
    """Where stages short of memory may offload activations: `host`, the memory of their node, or `neighbours`, also
    other devices with memory to spare."""

    def __post_init__(self) -> None:
        _at_least_one("micro_batch", self.micro_batch)
        _at_least_one("stages_per_device", self.stages_per_device)
        _check_tensor(self.tensor)
        if self.offload_to not in get_args(OffloadTo):
            raise InvalidInput(f"is '{self.offload_to}', must be 'host' or 'neighbours'", where="offload_to")
        _check_effort(self.effort)
        check_weights(self.weights, self.predictor)
        _check_objective(self.objective, inference=self.inference)
        if self.balance and not self.loads:
            raise InvalidInput("is true, but samples have no loads", where="balance", remedy="Give loads (--load).")
        if isinstance(self.loads, tuple):
            parse_loads(self.loads)

    @property
    def sample_loads(self) -> Loads | None:
        """The loads by name; None if every sample is the same work."""
        if not self.loads:
            return None
        return self.loads if isinstance(self.loads, Mapping) else parse_loads(self.loads)

    @property
    def efforts(self) -> tuple[SearchEffort, ...]:
        """The searches whose best plan is taken, in their order."""
        return EFFORTS[self.effort] if isinstance(self.effort, str) else (QUICK, NORMAL, THOROUGH)

    @property
    def budget(self) -> Budget:
        """The time that searches may take from now on."""
        return Budget() if isinstance(self.effort, str) else Budget.of(self.effort)

    @property
    def split_choice(self) -> SplitChoice:
        """`none`, `auto`, or the names of the operators to split."""
        if not isinstance(self.split, str):
            return self.split
        return self.split if self.split in (NO_SPLIT, AUTO_SPLIT) else [name.strip() for name in self.split.split(",")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSection(PlanSettings):
    """`[plan]` of a configuration: what the plan is asked for, and where its graph and its costs come from."""

    stages: str | None = field(default=None, metadata={"metavar": "FILE"})
    """A file of hand-written stages to use instead of a planner.

    The path is relative to the folder of the task. When an elastic run loses devices, the planner plans for those that
    are left."""
    costs: str = "profile"
    """`profile` measures the operators on this machine, `estimate` computes costs. Or a file of `graphpipe profile`, or
    the folder of a run, which has corrected its costs."""
    look_into: str = field(default="", metadata={"metavar": "NAMES"})
    """Submodules to look into, which are one operator each by default: names with commas in between, or `*` for all,
    down to single operations."""
    cache: bool = True
    """Neither use nor keep captures and measured costs.

    If true, captures and costs that earlier commands kept in the user's cache folder are used, and new ones kept."""

    def __post_init__(self) -> None:
        PlanSettings.__post_init__(self)
        if self.stages and (self.micro_batch or self.mixed_micro_batches or self.schedule):
            raise InvalidInput(
                "hand-written stages exclude micro_batch, mixed_micro_batches and schedule",
                where="plan.stages",
                remedy="The file names the micro-batch of each stage, and the schedule.",
            )


def asked(settings: PlanSettings | None, keywords: Mapping[str, Any]) -> PlanSettings:
    """Return settings with some fields changed, or the defaults with these fields.

    Raises:
        InvalidInput: a keyword is no field (the message names the nearest one), or has a value out of range.
    """
    known = [each.name for each in fields(PlanSettings)]
    for name in keywords:
        if name not in known:
            raise InvalidInput(f"unknown setting '{name}' of a plan", remedy=nearest(name, known))
    return replace(settings or PlanSettings(), **keywords)


def check_weights(weights: WeightPolicy, predictor: Predictor) -> None:
    """Check a weight policy and its predictor.

    Raises:
        InvalidInput: an unknown policy or predictor, or one without the other.
    """
    check_policy_names(weights, predictor)
    if weights == "predict" and not predictor:
        what, remedy = "is missing, but weights is 'predict'", "Choose pipeoptim, spectrain or xpipe."
        raise InvalidInput(what, where="predictor", remedy=remedy)
    if weights != "predict" and predictor:
        what, remedy = f"is '{predictor}', but weights is '{weights}'", "Set weights to 'predict', or leave it out."
        raise InvalidInput(what, where="predictor", remedy=remedy)


def _check_objective(objective: str | None, *, inference: bool) -> None:
    known, others = get_args(Objective), get_args(InferenceObjective)
    if inference:
        known, others = others, known
    if objective not in (None, *known):
        of = f"Of {'inference' if inference else 'training'} it is {' or '.join(known)}."
        remedy = of if objective in others else nearest(str(objective), [*known])
        raise InvalidInput(f"unknown objective '{objective}'", where="objective", remedy=remedy)


def _check_tensor(choice: object) -> None:
    if isinstance(choice, int):
        _at_least_one("tensor", choice)
    elif choice != "auto":
        raise InvalidInput(f"is '{choice}', must be a number or 'auto'", where="tensor")


def _check_effort(effort: object) -> None:
    if isinstance(effort, str):
        if effort not in EFFORTS:
            known = [*EFFORTS]
            remedy = f"{nearest(effort, known)} A number is in seconds."
            raise InvalidInput(f"unknown effort '{effort}'", where="effort", remedy=remedy)
    elif not isinstance(effort, int | float) or isinstance(effort, bool) or not effort > 0:
        raise InvalidInput(f"is {effort}, must be more than 0 seconds", where="effort")


def _at_least_one(name: str, number: int | None) -> None:
    if number is not None and number < 1:
        raise InvalidInput(f"is {number}, must be at least 1", where=name)
