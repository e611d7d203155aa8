"""Predicted against measured: step time and memory of real training on local ranks.

**Measured**, on the machine named in the JSON file of the same name. Each model's operators are profiled here, with
one thread, and the links between its ranks (`graphpipe profile --links`). The default planner cuts the model
(micro-batches of 8, mini-batch of 64). The simulator predicts how long a step takes and how much memory every rank
needs. Then the ranks train the model (AdamW, all checks on). Nothing is fitted to the measured steps. Other virtual
machines on the same host change the speed of this one for seconds at a time. So a fixed piece of work is timed before
and after each profile and each block of steps (`pace.py`). A block is undisturbed if this pace is at most 1.1
times the least. `undisturbed` is the number of such blocks, of 8. Three blocks count. If fewer than three are
undisturbed, disturbed ones take their places, and the row is less reliable. The speed also drifts from minute to
minute. So operators and links are profiled once more after the steps, and the predicted step is the mean of both
predictions, for the same stages. All of this is done seven times. The row shows the round with the median step error,
and `of rounds` the errors of all rounds.

Some machines change their speed for minutes. Then a whole round has few undisturbed blocks, and its operators are
profiled at another speed than the one at which its ranks train. `at equal pace` is the median of the errors after two
divisions: the predicted step by the mean pace of its profiles, and the measured step by the median pace of the blocks
that count. Each pace is relative to the least with as many ranks.

Other processes disturb as well. Of the undisturbed blocks, those three count in which other processes used least of
the cores (15 steps). `others` is the share of the cores that they used. If it is large, the measured step is
unreliable, and processor time is the better measure. `processor error` compares the predicted seconds of tasks and
updates of all ranks with the processor time that the ranks used, which includes messages and everything else that the
runtime does.

Memory is what torch had allocated at the peak of a step, on the rank with the worst prediction. It includes
parameters, gradients and optimizer state. The prediction counts these, what samples in flight keep, what operators
and the loss hold while they run (profiled with the times), and the buffers of messages. It does not count copies
that make values contiguous, or what kernels need inside. If the step is off by more than 10 %, the last column
shows the tasks that took longer or shorter than predicted, summed over the step. The JSON file also has the waits for
messages. The traced steps are not the timed ones.
"""

from dataclasses import asdict, replace
from statistics import fmean, median
from typing import Any

import torch

import graphpipe as gp
from bench.record import save
from bench.running.predicted.pace import Calm
from bench.running.predicted.prediction_case import Measured, Planned, measured, planned
from bench.tables import markdown
from graphpipe.plans import Plan
from graphpipe.trace import SPAN_WORDS
from graphpipe.trace.compare import Difference, compare

CASES = tuple((model, ranks) for model in ("gpt-small", "two-tower-small", "mmt-small") for ranks in (2, 4))
TARGET = 0.10
ROUNDS = 7
NAMED = 3
"""Number of differences in a row."""
LOOK_SECONDS = 10.0
"""Seconds spent measuring the pace of the undisturbed machine."""
HEADER = (
    *("model", "ranks", "stages", "predicted ms", "measured ms", "step error %", "of rounds"),
    *("at equal pace %", "of rounds", "processor error %"),
    *("predicted MB", "measured MB", "memory error %", "others %", "undisturbed", "largest differences (ms)"),
)


def main() -> None:
    """Run the benchmark, write JSON and table."""
    rows: list[dict[str, Any]] = []
    torch.set_num_threads(1)
    alone, together = Calm(), {ranks: Calm() for _, ranks in CASES}
    alone.watch(LOOK_SECONDS)
    for model, ranks in CASES:
        rounds: list[dict[str, Any]] = []
        for _ in range(ROUNDS):
            before = planned(model, ranks, alone)
            found = measured(model, before.plan, together[ranks])
            rounds.append(_row(model, (before, before.again(alone)), found))
        at_equal_pace = sorted(_error_at_equal_pace(row, alone, together[ranks]) for row in rounds)
        rounds.sort(key=lambda row: row["step_error"])
        errors = {"step_errors": [row["step_error"] for row in rounds], "step_errors_at_equal_pace": at_equal_pace}
        rows.append(rounds[ROUNDS // 2] | errors)
        print(*_line(rows[-1]), sep="\t", flush=True)
    title, _, caption = (__doc__ or "").partition("\n\n")
    markdown("prediction", title.rstrip("."), caption.strip(), HEADER, [_line(row) for row in rows])
    print(f"saved {save('prediction', rows)}")


def _error_at_equal_pace(row: dict[str, Any], alone: Calm, together: Calm) -> float:
    slower_profile, slower_steps = row["profile_pace"] / alone.least, row["step_pace"] / together.least
    return (row["predicted_seconds"] / slower_profile) / (row["measured_seconds"] / slower_steps) - 1


def _row(model: str, made: tuple[Planned, Planned], found: Measured) -> dict[str, Any]:
    plan, predicted = made[0].plan, gp.simulate(made[0].plan)
    comparison = compare(predicted, found.trace)
    both = [predicted.step_seconds, gp.simulate(made[1].plan).step_seconds]
    step, busy = fmean(both), fmean(_computing(each.plan) for each in made)
    peaks = [predicted.peak_bytes[device] for device in plan.used_devices]
    return {
        "model": model,
        "ranks": len(plan.used_devices),
        "stages": [f"{len(stage.ops)}x{stage.degree}" for stage in plan.stages],
        "predicted_seconds": step,
        "predicted_seconds_before_and_after": both,
        "measured_seconds": found.seconds,
        "step_error": step / found.seconds - 1,
        "predicted_processor_seconds": busy,
        "measured_processor_seconds": found.processor_seconds,
        "processor_error": busy / found.processor_seconds - 1,
        "link": asdict(plan.cluster.intra_node),
        "predicted_bytes": peaks,
        "measured_bytes": list(found.peak_bytes),
        "memory_errors": [here / there - 1 for here, there in zip(peaks, found.peak_bytes, strict=True)],
        "profile_pace": fmean(each.pace for each in made),
        "step_pace": found.pace,
        "others": found.others,
        "undisturbed": found.undisturbed,
        "steps": found.steps,
        "differences": [_difference(plan, each) for each in comparison.differences],
    }


def _computing(plan: Plan) -> float:
    # Seconds of all tasks and updates, with one core each.
    apart = replace(plan, cluster=replace(plan.cluster, cores_per_node=None))
    return sum(gp.simulate(apart).busy_seconds.values())


def _difference(plan: Plan, it: Difference) -> dict[str, Any]:
    return {
        "waits": it.kind in ("receive", "send"),
        "work": f"{SPAN_WORDS[it.kind]} of {plan.stages[it.stage].name}",
        "count": it.count,
        "predicted_seconds": it.predicted_seconds,
        "measured_seconds": it.measured_seconds,
        "total_seconds": it.total_seconds,
    }


def _line(row: dict[str, Any]) -> list[object]:
    worst = max(range(row["ranks"]), key=lambda rank: abs(row["memory_errors"][rank]))
    missed = abs(row["step_error"]) > TARGET
    tasks = [it for it in row["differences"] if not it["waits"]][:NAMED]
    named = [f"{it['work']} {1e3 * it['total_seconds']:+.1f}" for it in tasks] if missed else []
    return [
        row["model"],
        row["ranks"],
        " ".join(row["stages"]),
        f"{1e3 * row['predicted_seconds']:.1f}",
        f"{1e3 * row['measured_seconds']:.1f}",
        f"{100 * row['step_error']:+.1f}",
        " ".join(f"{100 * error:+.0f}" for error in row["step_errors"]),
        f"{100 * median(row['step_errors_at_equal_pace']):+.1f}",
        " ".join(f"{100 * error:+.0f}" for error in row["step_errors_at_equal_pace"]),
        f"{100 * row['processor_error']:+.1f}",
        f"{row['predicted_bytes'][worst] / 1e6:.2f}",
        f"{row['measured_bytes'][worst] / 1e6:.2f}",
        f"{100 * row['memory_errors'][worst]:+.1f}",
        f"{100 * row['others']:.0f}",
        row["undisturbed"],
        "; ".join(named),
    ]
