"""Draws of the campaign of faults: what goes wrong, on which ranks, in which phase, and in what kind of run."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

STEPS, EVERY, BATCH = 8, 2, 16
"""Steps of a run, steps between its checkpoints, and samples per mini-batch."""
EARLIER_STEP = 5
"""The step in which another rank is killed first, if the drawn fault strikes while a checkpoint is loaded."""
SCHEDULES = ("1f1b", "zb-auto", "recompute")
OF_WEIGHTS = ("filling", "reading", "saving", "tensor", "exporting", "resuming")
"""The phases in which weights are read or written: all tensors of a rank, one tensor of a file, the files of a
checkpoint, one tensor of them, the final weights, and a checkpoint that is loaded."""
WORK = ("start", "send", "receive", "forward", "backward", "reduce", "optimizer", *OF_WEIGHTS)
KINDS: Mapping[str, tuple[str, ...]] = {
    "kill": WORK,
    "raise": WORK,
    "stop": WORK,
    "slow": WORK,
    "sigterm": WORK,
    "two ranks": WORK,
    "out of memory": WORK,
    "nan": ("forward", "backward", "optimizer"),
    "wrong message": ("forward",),
    "disk full": ("saving", "tensor", "exporting", "optimizer"),
    "launcher killed": WORK,
    "launcher terminated": WORK,
}
"""The phases in which each kind can strike."""
WAYS: Mapping[str, tuple[str, ...]] = {
    "out of memory": ("torch", "python"),
    "wrong message": ("rows", "type"),
    "disk full": ("error", "limit"),
    "two ranks": ("kill", "raise", "kill and stop"),
}
"""Several ways in which a fault of a kind happens."""
SIGNALS = ("kill", "stop", "sigterm", "launcher killed", "launcher terminated", "two ranks")
"""Kinds that may also strike at any moment after the phase has begun."""
MOST_DELAY_SECONDS = 0.08
"""A step takes at least as long as a third of this, because the task's data come slowly."""

Layout = tuple[tuple[str, ...], tuple[int, ...]]
LAYOUTS: Mapping[int, tuple[tuple[Layout, ...], ...]] = {
    2: (
        ((("a*", "b*"), (0,)), (("sum*",), (1,))),
        ((("a*", "b*", "sum*"), (0, 1)),),
    ),
    3: (
        ((("a*",), (0,)), (("b*",), (1,)), (("sum*",), (2,))),
        ((("a*", "b*"), (0, 1)), (("sum*",), (2,))),
    ),
    4: (
        ((("a*",), (0, 1)), (("b*",), (2,)), (("sum*",), (3,))),
        ((("a1", "b1"), (0,)), (("a2",), (1,)), (("b2",), (2,)), (("sum*",), (3,))),
    ),
    5: (((("a*",), (0, 1)), (("b*",), (2, 3)), (("sum*",), (4,))),),
    6: (
        ((("a*",), (0, 1)), (("b*",), (2, 3)), (("sum*",), (4, 5))),
        ((("a1",), (0,)), (("a2",), (1,)), (("b1",), (2,)), (("b2",), (3,)), (("sum*",), (4, 5))),
    ),
}
"""Stages of the task's model by number of ranks: the operators and devices of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kind of run: its plan and whether it is elastic."""

    ranks: int
    layout: int
    schedule: str
    elastic: bool
    background: bool
    """Whether checkpoints are written while training continues."""

    @property
    def stages(self) -> tuple[Layout, ...]:
        """The stages of its plan."""
        return LAYOUTS[self.ranks][self.layout]

    @property
    def name(self) -> str:
        """Names the plan, for files."""
        return f"{self.ranks}-{self.layout}-{self.schedule}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A fault and the run that it strikes."""

    number: int
    case: Case
    kind: str
    way: str
    phase: str
    step: int
    """From 1. A fault of a phase that a run has once, or before its first step, does not wait for it."""
    culprits: tuple[int, ...]
    """The ranks that fail. For a fault of the launcher: the rank whose phase decides when."""
    late: bool
    """Strike after the work of the phase, not before it."""
    delay_seconds: float
    """From then until a signal is sent."""
    initial_weights: str
    """Where initial weights come from: `file`, or `init` for the code of the model."""

    @property
    def launcher(self) -> bool:
        """True if the launcher is struck, not a rank."""
        return self.kind.startswith("launcher")


def draw(seed: int, number: int) -> Draw:
    """Return the draw of a campaign with this number. It depends on nothing else."""
    dice = random.Random(f"{seed}/{number}")
    kind = dice.choice([*KINDS])
    ranks = dice.choice([*LAYOUTS][:2] if kind.startswith("launcher") else [*LAYOUTS])  # whose ranks start slowly
    case = Case(
        ranks=ranks,
        layout=dice.randrange(len(LAYOUTS[ranks])),
        schedule=dice.choice(SCHEDULES),
        elastic=dice.random() < 0.5,
        background=dice.random() < 0.5,
    )
    phase = dice.choice([each for each in KINDS[kind] if _ranks_with(each, case.stages)])
    culprits = _culprits(dice, kind, phase, case)
    delayed = kind in SIGNALS and dice.random() < 0.4
    found = Draw(
        number=number,
        case=case,
        kind=kind,
        way="limit" if (kind, phase) == ("disk full", "optimizer") else dice.choice(WAYS.get(kind, ("",))),
        phase=phase,
        step=dice.randrange(EVERY, STEPS + 1, EVERY) if phase in ("saving", "tensor") else dice.randint(1, STEPS - 1),
        culprits=culprits,
        late=dice.random() < 0.5,
        delay_seconds=round(dice.uniform(0, MOST_DELAY_SECONDS), 4) if delayed else 0.0,
        initial_weights="file" if phase == "reading" else dice.choice(("file", "init")),
    )
    return replace(found, delay_seconds=0.0) if found.way == "raise" else found  # in the rank's own thread


def _culprits(dice: random.Random, kind: str, phase: str, case: Case) -> tuple[int, ...]:
    able = _ranks_with(phase, case.stages)
    if phase == "resuming":  # An elastic run has lost a rank by then, and its next plan may use fewer.
        able = able[:2] if kind == "two ranks" else able[:1] if case.elastic else able
    if kind != "two ranks":
        return (dice.choice(able),)
    return tuple(dice.sample(able, 2))


def _ranks_with(phase: str, stages: Sequence[Layout]) -> list[int]:
    # The last stage sends gradients and receives values; so do all others the other way around.
    ranks = sorted({device for _, devices in stages for device in devices})
    if phase in ("send", "receive"):
        return ranks if len(stages) > 1 else []
    if phase == "reduce":
        return [device for _, devices in stages if len(devices) > 1 for device in devices]
    return ranks
