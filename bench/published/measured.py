"""Predicted against measured: steps and memory of Aceso's runs on other people's GPUs.

**Measured** by the authors of Mist with Aceso's runtime (1F1B as in Megatron); nothing was measured here. The folder of
profiles, plans and runs is read by `graphpipe import --format aceso`. A folder of another cluster can be named:
`python -m bench measured FOLDER`. Every run of the folder is in the table.

- `schedule`: the measured compute of every stage, as one step of the simulator: messages, collectives and the optimizer
  are predicted. It needs all stages, so it is missing where only the ranks of the first node were published.
  `no messages` is the same without the time of messages, which is what a formula of 1F1B gives.
- `profile`: nothing of the run is used. The profile of the operators, the bandwidths and the times of collectives give
  the step.
- `memory`: the most that a GPU allocates, for every measured stage; mean and largest error of the stages.

**Nothing is fitted to the runs.** These constants are used, and where they come from:

- A weight of 2 bytes needs 16 bytes (ZeRO, section 3.1), and 18 while the optimizer runs (32-bit gradients).
- Adam reads and writes 60 bytes for each weight. A backward adds its gradients to those of earlier micro-batches, which
  is 6 bytes for each weight. Both at the rate of the operator without weights that moves most bytes in the profile.
- Devices wait for their messages, and exchange those against each other at the same time, as Megatron does.
- If a profile and the times of collectives differ, each group of GPUs has one of the two, drawn with equal odds; the
  prediction is the mean of 16 draws. Here they differ by a factor of 2.4 for groups of 4 GPUs.
- A node has 8 GPUs.
"""

from pathlib import Path
from statistics import mean
from typing import Any

from bench.published.measured_runs import (
    MeasuredRun,
    predicted_bytes,
    predicted_seconds,
    read_run,
    with_measured_compute,
    without_messages,
)
from bench.record import SHARED, save
from bench.tables import markdown
from graphpipe.importers.aceso_files import AcesoFiles
from graphpipe.importers.read_aceso import read_aceso
from graphpipe.plans import Plan
from graphpipe.simulator import step_seconds

DATA = SHARED / "mist-a10g"
TARGETS = {"schedule_error": 0.04, "profile_error": 0.08, "memory_error": 0.035}
HEADER = (
    *("run", "stages", "measured s", "schedule s", "error %", "no messages %", "profile s", "error %"),
    *("stages with memory", "memory error %", "largest %"),
)


def main(folder: Path = DATA) -> None:
    """Run the benchmark, write JSON and table.

    Args:
        folder: profiles, plans and runs of a cluster.
    """
    if not folder.exists():
        print(f"skipped: no measured runs at {folder}")
        return
    files = AcesoFiles.find(folder)
    rows = [row for name in sorted(files.plans) if (row := measured_row(files, name))]
    for row in rows:
        print(*_line(row), sep="\t", flush=True)
    found = summary(rows)
    for line in _words(found):
        print(line)
    title, _, caption = (__doc__ or "").partition("\n\n")
    caption = f"{caption.strip()}\n\n" + "\n".join(f"- {line}" for line in _words(found))
    markdown("measured", title.rstrip("."), caption, HEADER, [_line(row) for row in rows])
    print(f"saved {save('measured', rows, summary=found, targets=TARGETS, runs_of=folder.name)}")


def measured_row(files: AcesoFiles, name: str) -> dict[str, Any] | None:
    """Return the predictions of one run beside its measurement; None if the run was not measured."""
    if name not in files.runs:
        return None
    run, plan = read_run(files.runs[name]), read_aceso(files.folder, name)
    profile = predicted_seconds(files, name)
    memory = [predicted_bytes(plan, stage) / found.peak_bytes - 1 for stage, found in run.stages.items()]
    return {
        "run": name,
        "stages": len(plan.stages),
        "measured_seconds": run.step_seconds,
        **_schedule(plan, run),
        "profile_seconds": profile,
        "profile_error": profile / run.step_seconds - 1,
        "memory_errors": memory,
    }


def _schedule(plan: Plan, run: MeasuredRun) -> dict[str, float]:
    if len(run.stages) < len(plan.stages):
        return {}
    known = with_measured_compute(plan, run)
    seconds, alone = step_seconds(known), step_seconds(without_messages(known))
    return {
        "schedule_seconds": seconds,
        "schedule_error": seconds / run.step_seconds - 1,
        "no_messages_error": alone / run.step_seconds - 1,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the mean and the largest absolute error, and their number, of every kind of prediction."""
    errors = {
        name: [abs(row[name]) for row in rows if name in row]
        for name in ("schedule_error", "no_messages_error", "profile_error")
    }
    errors["memory_error"] = [abs(error) for row in rows for error in row["memory_errors"]]
    return {
        name: {"mean": mean(found), "largest": max(found), "count": len(found)}
        for name, found in errors.items()
        if found
    }


def _words(found: dict[str, dict[str, float]]) -> list[str]:
    names = {
        "schedule_error": "Measured compute to step",
        "no_messages_error": "The same without messages",
        "profile_error": "Profile to step",
        "memory_error": "Memory of a stage",
    }
    return [
        f"{names[name]}: mean absolute error {100 * each['mean']:.1f} %, largest {100 * each['largest']:.1f} % "
        f"({each['count']:.0f} {'stages' if name == 'memory_error' else 'runs'}"
        + (f"; target {100 * TARGETS[name]:g} %)" if name in TARGETS else ")")
        for name, each in found.items()
    ]


def _line(row: dict[str, Any]) -> list[object]:
    errors = row["memory_errors"]
    known = "schedule_seconds" in row
    return [
        row["run"].partition("stages")[0] + "stages",
        row["stages"],
        f"{row['measured_seconds']:.1f}",
        f"{row['schedule_seconds']:.1f}" if known else "",
        f"{100 * row['schedule_error']:+.1f}" if known else "",
        f"{100 * row['no_messages_error']:+.1f}" if known else "",
        f"{row['profile_seconds']:.1f}",
        f"{100 * row['profile_error']:+.1f}",
        len(errors),
        f"{100 * mean(map(abs, errors)):.1f}",
        f"{100 * max(errors, key=abs):+.1f}",
    ]
