"""The numbers of the search that were chosen, not derived: what counts as close, and how much is tried.

Each says what it does, and where other values were compared: on a row of `bench/results`, or on 45 problems (models of
the zoo, profiles and random graphs on 3 to 16 devices; equal and slow links, unequal devices, short memory), or 19 of
them. "Not measured" means that it was only chosen. Equal purposes share a number.

A plan's tasks are its forwards, backwards and weight gradients. Work is operators times devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

CLOSE = 1.02
"""What is behind the best by this factor hardly wins any more, and a gain below it hardly counts. Not measured."""
GAIN = 1.05
"""What ranks behind by more than this, before small changes, is left out. Not measured."""
NEAR = 1.1
"""How many times as fast small changes and better estimates may make a plan. With 1.2, and without a limit, 39 plans
stayed the same."""
KEPT = 1.15
"""Candidates within this factor of the best estimate are kept, and parts of a cluster of which one ranks within it of
the best plan. figure6: with 1.1, dlrm on 4 devices lost 4.2 %. counts: with 1.05 for parts, gnmt on 30 lost 5.5 %."""
FAR = 1.5
"""How many times as fast sharing devices, undoing recomputation, or a part of the cluster may make a plan. Not
measured."""
WORTH = 1.0005
"""A change must shorten the step by this factor to be worth it. With 1.001, mmt of `graphpipe demo` lost 0.8 %. With
1.001 for changes of hosts alone, 60 plans of `sharing` took 0.03 % longer."""
RELAXED, RELAXED_SETTINGS = (1.06, 1.2, 1.5), 4
"""Multiples of the best target to try, because a slower bottleneck can allow a shallower pipeline, and for how many of
the best settings. With 1.2 alone, 45 steps became 0.09 % longer (4.6 % at worst), without any 0.30 % (9.3 %)."""
PRECISION = {"step": 1.01, "bottleneck": 1.003}
"""The precision of targets, by objective. The step depends on more than its target. Not measured."""
PASSES = 6
"""Most times that all changes of a plan are tried, while one of them helps. With 4, gnmt on 7 devices lost 3.3 %."""
HALVINGS = 20
"""Halvings of an interval, which narrow it to a millionth. Not measured."""
RUNS_PER_UNIT = 8
"""Least number of runs of operators into which the work of one unit of devices is divided. Not measured."""
TAKERS = 2
"""Stages that other stages may give devices to: the slowest ones. Not measured."""
FEW = 8
"""Most unions of parts of a cluster, operators to split, micro-batch sizes of DAPPLE's chains, and stages that choose
their devices last, that are tried one after the other, and targets that are tried at once. Not measured."""
FEWER = 3
"""Most devices to leave out of a number that is hard to fill. counts: with 1, dlrm on 16 devices lost 5.1 %."""
MANY = 64
"""Most stages and micro-batches of a folded pipeline, and changes of devices that are tried. Not measured."""
DOWNSETS, MOST_DOWNSETS = 600, 40_000
"""Downsets of a graph up to which all partitions are a candidate among others, and up to which Piper searches (its
published limit). Without the first, of 30 irregular clusters gnmt on 7 devices lost 3.1 %."""
RANGES = 60
"""Ranges of limits that DAPPLE's search examines. Without it as a candidate, gnmt on 12 devices lost 2.4 %."""

ROOM = 0.5
"""Share of a device's memory up to which a plan had room for other choices. Not measured."""
MORE_MEMORY = (3.0, 1.7, 1.5, 1.3)
"""How many times the memory of the devices searches assume, one after the other, where memory is short. memory: gpt, up
to 10 % faster with 1.5."""
SHARES = (0.0, 0.25, 0.5, 1.0)
"""Shares of the mini-batch assumed in flight at every stage, until plans fit. Shares of the pipeline's period in which
copies may hide: those in and out take turns. Without a flush: more micro-batches in flight, for each stage that
follows. Not measured."""
MORE_VERSIONS = 4
"""A plan that fits with this many versions more of all weights is taken to have memory enough. Not measured."""
EXACT_OPS, CHOICES = 12, 6_000
"""Operators of a stage up to which its best decisions about memory are found, and most partial choices beyond that,
over all operators. Not measured."""
CUTS, CUT_SLACK = 12, 2
"""Of DawnPiper's search: cuts of an interval, and operators by which it grows. Without the second, mmt with 0.4 of its
memory lost 4.3 %, and resnet50 gained 10.8 %."""

FEW_TASKS, FEW_SHARED_TASKS, MANY_TASKS = 100, 400, 1_000
"""Tasks of a plan that count as few, so that more plans are tried (of plans that share devices, together), and as many,
so that fewer are, or, of all replicas, the interleaved order is ranked less exactly. With 100 for shared devices, 2 of
45 problems lost 1.1 and 3.2 %. Without the last, mmt on 32 devices took 25 % longer to plan."""
MORE = 2
"""How many times as many plans of few tasks are improved. figure6: candle-uno on 8 devices, 5 % slower with 1."""
SEARCHED_TASKS = 20_000
"""Most tasks of all plans whose schedules are searched. Not measured."""
SLOWER = 20
"""How many times as long an evaluation takes if it is not quick. With 1, dlrm on 4 CPU processes gained 4 % in four
times the time."""

TINY, SMALL = 64, 500
"""Work up to which all operators may change places, without which 4 of 6 problems lost up to 5.2 %, and up to which
`auto` is compared with a search for 1F1B, and random changes have more time under 1F1B. exhaustive: `auto` once ended
8 % behind, and small changes alone 11 %."""
MEDIUM, LARGE = 4_096, 10_000
"""Work up to which chains and intervals of one order are searched exactly, and parts of a cluster. memory: with 2,048,
inception_v3 lost 9 % with 0.4 of its memory. The second was not measured."""
STAGES_PER_DEVICE = 4
"""Stages that a device may host by default. sharing: all rows."""
HUGE = 150_000
"""Work up to which devices share stages, and most tasks of all plans that are simulated once. scaling: 513 operators on
256 devices, 3 % in twice the time."""
MATRICES = 1e9
"""Elements of all matrices of a search for inference. Not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEffort:
    """How much of the search runs (`PlanSettings.effort`)."""

    candidates: int
    """Partitions that are kept by their estimates."""
    ranked: int
    """Plans of these that get a greedy schedule."""
    searched: int
    """Plans for which a schedule is searched."""
    improved: int
    """Plans that small changes improve."""
    changed_tasks: int
    """Most tasks to schedule while small changes improve one plan."""
    folds: int
    """Pipelines that pass over the devices several times and that are ranked."""
    hosted_tasks: int
    """Most tasks of all plans that are ranked while stages change their devices."""
    kicks: int
    """How often the best plan is left by random changes (`iterated`)."""
    kicked_tasks: float
    """Tasks of the plans ranked after random changes, from which on the best plan is not left any more. Where devices
    share stages, the tasks of all replicas count, and each plan as `FEW_TASKS` more."""
    kicked_tasks_in_order: float
    """The same under schedules that do not split backwards, where random changes of small problems gain more."""
    kicked: float
    """Work up to which it is left."""
    compared: float = SMALL
    """Work up to which `auto` is compared with a search for 1F1B; between sites, any work. 0: never."""
    relaxed: Sequence[float] = RELAXED
    """Multiples of the best target to try."""
    most_hosted: float = inf
    """The most stages that a device may host, if the caller does not say."""
    parts: bool = True
    """Whether parts of the cluster are searched too."""
    exhaustive: bool = True
    """Whether all partitions of a small graph are searched."""
    chains: bool = True
    """Whether DAPPLE's chains are searched, which takes longest and gains least."""

    def kicks_for(self, work: int) -> int:
        """Return how often the best plan of a problem of so much work is left by random changes."""
        return self.kicks if work <= self.kicked else 0

    def kicked_tasks_for(self, work: int, *, splits_backward: bool) -> float:
        """Return the tasks of the plans ranked after random changes, after which these end."""
        return self.kicked_tasks if splits_backward or work > SMALL else self.kicked_tasks_in_order


QUICK = SearchEffort(
    candidates=2,
    ranked=2,
    searched=1,
    improved=1,
    changed_tasks=0,
    folds=0,
    hosted_tasks=0,
    kicks=0,
    kicked_tasks=0,
    kicked_tasks_in_order=0,
    kicked=0,
    compared=0,
    relaxed=RELAXED[1:2],
    most_hosted=1,
    parts=False,
    exhaustive=False,
    chains=False,
)
"""No slower than `pipedream`. planning: mmt, dlrm and candle-uno on 32 devices."""
NORMAL = SearchEffort(
    candidates=12,
    ranked=16,
    searched=4,
    improved=3,
    changed_tasks=10_000,
    folds=12,
    hosted_tasks=6_000,
    kicks=10,
    kicked_tasks=60_000,
    kicked_tasks_in_order=1_000_000,
    kicked=1_000,
)
"""clusters: with 60,000 tasks under every schedule, random changes made 27 steps of 90 shorter, by 0.6 % in the mean
of all and 14 % at most, in 1.7 times the time. Without a limit it was 38 steps, 0.9 % and 3.3 times. But 12 steps
under 1F1B were 1 to 18 % longer than without a limit, and with 1,000,000 nearly all changes end. Random changes of
work above 500 made 13 steps of 70 shorter, by 0.5 % in the mean of all and 16 % at most, in 1.3 times the time. Above
1,000, dlrm on 32 devices took 2.7 times as long. Of 19 problems, steps became longer with 6 candidates by 0.07 %
(1.2 % at worst), with 8 ranked plans by 0.22 % (4.2 %), and with 4 folds by 0.30 % (4.2 %). With 2 searched plans,
dlrm on 32 devices lost 0.02 % (figure6)."""
THOROUGH = SearchEffort(
    candidates=24,
    ranked=32,
    searched=8,
    improved=6,
    changed_tasks=40_000,
    folds=24,
    hosted_tasks=24_000,
    kicks=10,
    kicked_tasks=300_000,
    kicked_tasks_in_order=3_000_000,
    kicked=inf,
    compared=inf,
)
"""Two to four times the limits of normal. Not measured."""
EFFORTS: Mapping[str, tuple[SearchEffort, ...]] = {
    "quick": (QUICK,),
    "normal": (NORMAL,),
    "thorough": (NORMAL, THOROUGH),
}
"""The searches of each effort, whose best plan is taken. So a thorough search is never behind a normal one."""
