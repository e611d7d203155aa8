"""What a scheduler declares of itself, so that no other file lists schedules by name."""

from collections.abc import Callable
from dataclasses import dataclass

from graphpipe.plans import Plan
from graphpipe.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """A scheduler and its traits. Each trait has a default that holds for 1F1B."""

    name: str
    """What users write after `--schedule`, in `gp.plan(schedule=...)` and in plan files."""
    build: Callable[[Plan], Schedule]
    """Returns the schedule of a plan. Raises `InvalidInput` if a stage's `in_flight` samples are too few for it."""
    splits_backward: bool = False
    """Whether some backwards come in two halves: first the gradients of inputs, later those of weights."""
    in_flight: Callable[[Plan], tuple[int, ...]] | None = None
    """Returns the samples in flight of every stage, given a plan with those that 1F1B needs. None: the same."""
    uses_spare_memory: bool = False
    """Whether more samples in flight than 1F1B needs can shorten the step: whoever chooses it raises `in_flight` as far
    as the memory of the devices allows."""
    uses_bursts: bool = False
    """Whether it reads each stage's `burst`. Only stages written by hand and mixed micro-batch sizes set bursts, so
    that users cannot ask for it by name."""
    in_a_v: bool = False
    """Whether it is only for pipelines whose devices host two stages each in a V: the first and the last one, and so
    on. The planner `graphpipe` then looks for such plans."""
    tried_by_auto: bool = False
    """Whether `auto` simulates it and takes it where it makes the step shortest."""
    considers: frozenset[str] = frozenset()
    """Names of schedules that it compares itself, and returns where they are better: `auto` need not try them too."""
    endless: bool = False
    """Whether its order can go on across mini-batches without a flush: 1F1B's, with bursts or a split backward if it
    declares them. Plans with another weight policy than `flush` need such a schedule."""
    trains: bool = True
    """Whether it has backwards. One with only forwards is for plans that do not train, and these need such a one."""
    flushes: bool = True
    """Whether the pipeline drains at the end of every mini-batch, and all stages update their weights then."""
    weight_versions: int = 1
    """The most versions of its weights that a stage keeps at a time."""
