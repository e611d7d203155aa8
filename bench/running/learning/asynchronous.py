"""Does training without a flush learn? Losses at equal samples under every weight policy, with several seeds.

The learning rate of each optimizer is the best of three in synchronous training. A run that ended goes on where it did.
"""

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from statistics import mean
from typing import Any

import torch

from bench.record import RESULTS, save
from bench.running.learning.asynchronous_models import CONTEXT, STAGES, Text
from bench.running.learning.asynchronous_optimizers import RATES, at_hand
from bench.running.learning.asynchronous_run import BATCH, UPDATES, Case, train
from bench.tables import markdown

SEEDS = (0, 1, 2)
POLICIES: Sequence[Case] = (
    *(Case(model="chain", weights="flush", optimizer=optimizer) for optimizer in RATES),
    Case(model="chain", weights="stash", optimizer="AdamW"),
    Case(model="chain", weights="moving-average", optimizer="AdamW"),
    Case(model="chain", weights="double-buffer", optimizer="AdamW"),
    Case(model="chain", weights="double-buffer", optimizer="Muon"),
    Case(model="chain", weights="stash", optimizer="NAdam(0.99)"),
    Case(model="chain", weights="predict", predictor="pipeoptim", optimizer="AdamW"),
    Case(model="chain", weights="predict", predictor="spectrain", optimizer="SGD"),
    Case(model="chain", weights="stash", optimizer="SGD"),
    Case(model="two branches", weights="flush", optimizer="AdamW"),
    Case(model="two branches", weights="stash", optimizer="AdamW"),
    Case(model="two branches", weights="stash", optimizer="AdamW", as_chain=True),
    Case(model="two branches", weights="double-buffer", optimizer="AdamW"),
)
"""Each is trained with every seed."""
ALSO = (Case(model="chain", weights="double-buffer", optimizer="Muon", rate=4e-3),)
"""With the first seed and a lower rate, which synchronous training has tried too."""
HEADER = (
    *("model", "weights", "optimizer", "rate", "delays", "versions"),
    *("training loss", "validation loss", "spread", "against synchronous"),
)
CAPTION = (
    f"Losses in nats per character after {UPDATES} mini-batches of {BATCH} windows of {CONTEXT} characters: the mean "
    f"over {len(SEEDS)} seeds, and the largest less the smallest. Models of two million parameters in {STAGES} stages. "
    "A mini-batch is one micro-batch, so that the delay is the number of stages behind a stage. The learning rate of "
    "an optimizer is the best of three in synchronous training with the first seed. The last column is the validation "
    "loss less that of synchronous training with the same optimizer, model and seeds."
)

Rows = dict[str, dict[str, Any]]
"""By `Case.key`."""


def main() -> None:
    """Run what is missing, and write JSON and table."""
    rows, policies = _known(), [case for case in POLICIES if case.optimizer in at_hand()]
    _run(rows, [case for optimizer in at_hand() for case in _tuning(optimizer)])
    cases = [_at_best_rate(rows, case) for case in policies]
    also = [case for case in ALSO if case.optimizer in at_hand()]
    _run(rows, [*(each for seed in zip(*cases, strict=True) for each in seed), *also])
    lines = [_line(rows, case) for case in policies]
    markdown("asynchronous", "Does training without a flush learn?", CAPTION, HEADER, lines)
    for line in [*lines, *([case.key, f"{_loss(rows[case.key]):.3f}"] for case in also)]:
        print(*line, sep="\t")


def _known() -> Rows:
    path = RESULTS / "asynchronous.json"
    if not path.exists():
        return {}
    kept: dict[str, Any] = json.loads(path.read_text())
    return {row["key"]: row for row in kept["rows"]} if kept["settings"] == _settings() else {}


def _settings() -> dict[str, Any]:
    return {"updates": UPDATES, "batch": BATCH, "context": CONTEXT, "stages": STAGES}


def _tuning(optimizer: str) -> list[Case]:
    case = Case(model="chain", weights="flush", optimizer=optimizer, seed=SEEDS[0])
    return [replace(case, rate=rate) for rate in RATES[optimizer]]


def _at_best_rate(rows: Rows, case: Case) -> list[Case]:
    # With every seed.
    best = min(_tuning(case.optimizer), key=lambda tried: _loss(rows[tried.key]))
    return [replace(case, rate=best.rate, seed=seed) for seed in SEEDS]


def _run(rows: Rows, cases: Sequence[Case]) -> None:
    missing = [case for case in cases if case.key not in rows]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        text = Text.read()
        for done in as_completed([pool.submit(train, case, text) for case in missing]):
            row = done.result()
            rows[row["key"]] = row
            save("asynchronous", [*rows.values()], settings=_settings())
            print(f"{len(rows)} runs are done: {row['key']}: {_loss(row):.3f}", flush=True)


def _loss(row: Mapping[str, Any]) -> float:
    return float("inf") if row["train"] is None else row["validation"][-1]


def _line(rows: Rows, case: Case) -> list[object]:
    found = [rows[each.key] for each in _at_best_rate(rows, case)]
    same = replace(case, weights="flush", predictor="", as_chain=False)
    losses, others = ([_loss(rows[each.key]) for each in _at_best_rate(rows, it)] for it in (case, same))
    model, policy, optimizer, *_ = case.key.split(" | ")
    return [
        *(model, policy, optimizer, f"{_at_best_rate(rows, case)[0].rate:g}"),
        *(f"{max(found[0][name])} to {min(found[0][name])}" for name in ("delays", "versions")),
        f"{mean(_training_loss(row) for row in found):.3f}",
        *(f"{mean(losses):.3f}", f"{max(losses) - min(losses):.3f}", f"{mean(losses) - mean(others):+.3f}"),
    ]


def _training_loss(row: Mapping[str, Any]) -> float:
    return float("inf") if row["train"] is None else row["train"]
