"""Is PipeOptim never behind 2BW, SpecTrain and stashing? Image classes and sentiments, 4 and 8 stages, five seeds.

The learning rate of each optimizer and model is the best of three in synchronous training with the first seed. A run
that ended goes on where it did.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

import torch

import graphpipe as gp
from bench.record import append_row, read_rows
from bench.running.learning.asynchronous_optimizers import schedule
from bench.running.learning.asynchronous_run import staged
from bench.running.learning.task_models import BLOCKS, TASKS
from bench.tables import markdown
from graphpipe.errors import NonFiniteLoss
from graphpipe.planning.hand_plan import under_policy
from graphpipe.plans.stage import Predictor, WeightPolicy

NAME = "async-tasks"
SEEDS = (0, 1, 2, 3, 4)
STAGES = (4, 8)
BATCH, UPDATES, SEGMENT = 16, 300, 50
"""Samples of a mini-batch, mini-batches of a training, and between two evaluations."""
OPTIMIZERS: Mapping[str, tuple[type[torch.optim.Optimizer], Mapping[str, float], tuple[float, ...]]] = {
    "SGD": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 5e-4}, (0.01, 0.03, 0.1)),
    "Adam": (torch.optim.Adam, {}, (1e-3, 3e-3, 1e-2)),
    "AdamW": (torch.optim.AdamW, {}, (1e-3, 3e-3, 1e-2)),
}
"""By name: what makes it, its settings, and the rates that are tried in synchronous training."""
POLICIES: Mapping[str, tuple[WeightPolicy, Predictor]] = {
    "flush": ("flush", ""),
    "2BW": ("double-buffer", ""),
    "stash": ("stash", ""),
    "SpecTrain": ("predict", "spectrain"),
    "PipeOptim": ("predict", "pipeoptim"),
}
HEADER = ("model", "optimizer", "rate", "stages", *POLICIES, "PipeOptim less the best other one")
CAPTION = (
    f"Correct classes of held-out samples in percent, at best over the evaluations after every {SEGMENT} of {UPDATES} "
    f"mini-batches of {BATCH} samples: the mean over {len(SEEDS)} seeds, and in brackets the largest less the "
    "smallest. A mini-batch is one micro-batch, so that the delay of a stage is the number of stages behind it. "
    "`flush` is synchronous training. The last column compares PipeOptim with the best of 2BW, stashing and SpecTrain; "
    "in brackets is the standard error of this difference over the seeds. Scans of digits come with the examples, and "
    "reviews with a package (`vaderSentiment`). Measured in one process."
)

Rows = dict[str, dict[str, Any]]
"""By `Case.key`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training."""

    task: str
    optimizer: str
    rate: float
    policy: str = "flush"
    stages: int = 1
    seed: int = SEEDS[0]

    @property
    def key(self) -> str:
        """What no other training has."""
        return " | ".join(map(str, asdict(self).values()))


def main() -> None:
    """Run what is missing, and write the table."""
    rows: Rows = {row["key"]: row for row in read_rows(NAME)}
    lines: list[list[object]] = []
    for task in TASKS:
        for optimizer, (_, _, rates) in OPTIMIZERS.items():
            tried = [Case(task=task, optimizer=optimizer, rate=rate) for rate in rates]
            _run(rows, tried)
            best = max(tried, key=lambda case: _best(rows[case.key]))
            _run(rows, [case for seed in SEEDS for case in _cases(replace(best, seed=seed))])
            lines += [_line(rows, best, stages) for stages in STAGES]
            markdown(NAME, "Predicted weights on tasks of PipeOptim's kind", CAPTION, HEADER, lines)
            print(*lines[-2:], sep="\n", flush=True)


def _cases(synchronous: Case) -> list[Case]:
    others = [policy for policy in POLICIES if policy != "flush"]
    return [synchronous, *(replace(synchronous, policy=name, stages=count) for name in others for count in STAGES)]


def _run(rows: Rows, cases: Sequence[Case]) -> None:
    missing = [case for case in cases if case.key not in rows]
    for case in missing:
        TASKS[case.task].data()  # Workers are forks, which have what was read before.
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for done in as_completed([pool.submit(train, case) for case in missing]):
            row = done.result()
            rows[row["key"]] = row
            append_row(NAME, row)


def train(case: Case) -> dict[str, Any]:
    """Return the row of a training: losses, and shares of held-out samples whose class is right."""
    task, data = TASKS[case.task], TASKS[case.task].data()
    make, settings, _ = OPTIMIZERS[case.optimizer]
    options = gp.PipelineOptions(lr_scheduler=schedule(UPDATES), rollback=False, check_finite=False, seed=case.seed)
    losses, right = list[float](), list[float]()
    model = task.model(case.seed)

    def build(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return make(parameters, lr=case.rate, **settings)  # pyright: ignore[reportCallIssue]

    row = {"key": case.key, **asdict(case), "right": right}
    try:
        with gp.Pipeline(_plan(case), model, torch.nn.functional.cross_entropy, build, options=options) as pipeline:
            while len(losses) < UPDATES:
                steps = range(len(losses), len(losses) + SEGMENT)
                losses += pipeline.segment(data.mini_batch(BATCH, case.seed * UPDATES + step) for step in steps)
                loss, scores = pipeline.evaluate(data.held_out.inputs, data.held_out.classes)
                right.append(float((scores.argmax(1) == data.held_out.classes).float().mean()))
                row["loss"] = loss
    except NonFiniteLoss:
        row["diverged_after"] = len(losses)
    return row


def _plan(case: Case) -> gp.Plan:
    task, each = TASKS[case.task], BLOCKS // case.stages
    ops = [tuple(f"b{at}" for at in range(first, first + each)) for first in range(0, BLOCKS, each)]
    plan = staged(task.model(0), {"x": task.data().held_out.inputs[:BATCH]}, ops, BATCH)
    weights, predictor = POLICIES[case.policy]
    return plan if weights == "flush" else under_policy(plan, weights, predictor)


def _best(row: Mapping[str, Any]) -> float:
    # A training that diverged has no evaluation after it.
    return 100 * max(row["right"], default=0.0)


def _line(rows: Rows, best: Case, stages: int) -> list[object]:
    found: dict[str, list[float]] = {}
    for policy in POLICIES:
        count = 1 if policy == "flush" else stages
        cases = [replace(best, policy=policy, stages=count, seed=seed) for seed in SEEDS]
        found[policy] = [_best(rows[case.key]) for case in cases]
    cells = [f"{mean(each):.2f} ({max(each) - min(each):.2f})" for each in found.values()]
    other = max((found[policy] for policy in ("2BW", "stash", "SpecTrain")), key=mean)
    differences = [ours - theirs for ours, theirs in zip(found["PipeOptim"], other, strict=True)]
    error = (sum((each - mean(differences)) ** 2 for each in differences) / (len(SEEDS) - 1) / len(SEEDS)) ** 0.5
    return [best.task, best.optimizer, f"{best.rate:g}", stages, *cells, f"{mean(differences):+.2f} ({error:.2f})"]
