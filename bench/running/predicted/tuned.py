"""Tuning from wrong costs: is the plan that `graphpipe tune` keeps the fastest of those it tried, and after how long?

**Measured**, on two local ranks. The costs of every operator are wrong by a factor between 1/2 and 2, drawn anew for
each row. `tune` runs the six plans that these costs predict best, and the plan that the measured steps suggest. Then
all of these plans are judged in five processes after each other: in the first by 14 steps each, as many as a race has
turns, and in the others by 4, in the opposite order each. They take turns step by step there, too. The median of the
five counts. `behind` is how much longer the kept plan takes than the fastest. `predicted first` is the same for the
plan that the wrong costs predict best, which is kept without tuning. `noise` is how far two processes of the same plan
are apart in the median. `steps` is the share of the measured seconds of all plans' 14 steps that tuning needed, and
`wall` the share of the whole time, in which processes start and models are built.
"""

import random
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

import graphpipe as gp
from bench.record import append_row, read_rows, save
from bench.tables import markdown
from graphpipe.model.capture_cache.capture_cache import cached_capture
from graphpipe.planning.settings import PlanSettings
from graphpipe.training.task.checked_model import find_checked_model
from graphpipe.training.tune.racing import MOST_TURNS
from graphpipe.training.tune.trials import Trials
from graphpipe.training.tune.tune import TuneProblem, tune
from graphpipe.training.tune.tuned_model import TunedModelName

MODELS = {"gpt-small": 32, "two-tower-small": 128, "mmt-small": 64}
"""Mini-batches."""
DRAWS = 3
PLANS = 6
STEPS = MOST_TURNS
"""Of each plan when all are tried: the most turns of a race."""
TURNS, FEW = 5, 4
"""How often all plans run, and the steps of each turn but the first."""


def measure(name: str, draw: int) -> dict[str, Any]:
    """Tune a model from wrong costs, and run all plans that were tried."""
    torch.manual_seed(0)
    model, cluster = find_checked_model(name), gp.Cluster.preset("local:2")
    kept = cached_capture(model.module, model.example_inputs, None)
    right, wrong = gp.estimate(kept.graph, cluster), random.Random(f"{name} {draw}")
    rows = tuple(row.times(2 ** wrong.uniform(-1, 1)) for row in right.rows)
    problem = TuneProblem(
        subject=TunedModelName(model=name, batch_size=MODELS[name]),
        captured=kept,
        costs=replace(right, rows=rows),
        cluster=cluster,
        settings=PlanSettings(),
    )
    tuned = tune(problem, count=PLANS, budget_seconds=600.0, tell=_tell)
    seconds = {trial.candidate.asked: trial.step_seconds for trial in tuned.trials}
    with TemporaryDirectory() as folder:
        trials = Trials(
            subject=problem.subject, captured=kept, folder=Path(folder), ends_at=time.monotonic() + 900, tell=_tell
        )
        numbers = [trials.add(trial.candidate) for trial in tuned.trials]
        start = time.monotonic()
        runs = [trials.measure(numbers, STEPS)]
        everything = time.monotonic() - start
        # The plan that is built first was slower by some percent in most processes.
        runs += [trials.measure(numbers[:: 1 if turn % 2 else -1], FEW) for turn in range(TURNS - 1)]
    typical = {number: [median(run[number]) for run in runs] for number in numbers}
    found = {number: median(each) for number, each in typical.items()}
    best = min(found.values())
    first = min(numbers, key=lambda number: tuned.trials[number].candidate.predicted_seconds)
    stepped = sum(trial.steps * (trial.step_seconds or 0.0) for trial in tuned.trials)
    return {
        "model": name,
        "draw": draw,
        "plans": len(numbers),
        "kept": tuned.best.candidate.asked or "as asked",
        "behind": found[0] / best - 1,
        "first_behind": found[first] / best - 1,
        "noise": median(abs(one / other - 1) for each in typical.values() for one, other in pairwise(each)),
        "step_share": stepped / sum(STEPS * seconds for seconds in found.values()),
        "wall_share": tuned.seconds / everything,
        "step_seconds": seconds,
    }


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def main(*, again: bool = False, draws: int = DRAWS) -> None:
    """Run the rows that are missing, and write the table and JSON.

    Args:
        again: measure all rows again.
        draws: rows of each model, with other costs each.
    """
    rows = [] if again else read_rows("tuned")
    done = {(row["model"], row["draw"]) for row in rows}
    for draw in range(draws):
        for name in MODELS:
            if (name, draw) not in done:
                rows.append(measure(name, draw))
                append_row("tuned", rows[-1])
    lines = [
        [
            row["model"],
            row["draw"],
            row["plans"],
            row["kept"],
            *(f"{100 * row[key]:.1f} %" for key in ("behind", "first_behind", "noise", "step_share", "wall_share")),
        ]
        for row in rows
    ]
    header = ["model", "draw", "plans", "kept", "behind", "predicted first", "noise", "steps", "wall"]
    markdown("tuned", "Tuning from wrong costs", (__doc__ or "").partition("\n\n")[2].strip(), header, lines)
    for line in lines:
        print(*line, sep="\t")
    print(f"saved {save('tuned', rows)}")
