"""Predicted against measured: steps of Sailor's runs on 1 to 64 nodes of GH200.

**Measured** by the authors of Sailor (SOSP 2025); nothing was measured here. The folder of profiles, links and runs is
read by `graphpipe import --format sailor`. A folder of another model or cluster can be named:
`python -m bench sailor FOLDER`. Every run of the folder is in the table. Sailor's own simulator misses these runs by
8.9 % in the mean.

**Nothing is fitted to the runs.** Layers take what the profile says, messages and sums of gradients what the curves
of the links say. Devices wait for their messages, one after the other. If two devices exchanged messages at the same
time, as in Megatron, the mean error of the published runs would be 8.2 %. The profile of one sample takes longer than
the runs of one sample did, by 16 and 28 %. In one run the sum of gradients took 1.06 s, 20 to 100 times as long as in
the others.

Memory is not compared: the fullest GPU of each run holds 4.7 to 8.6 GB more than the weights, gradients, optimizer
state and activations of the files, and the files do not say what.
"""

from pathlib import Path
from statistics import mean
from typing import Any

from bench.record import SHARED, save
from bench.tables import markdown
from graphpipe.importers.read_sailor import read_sailor
from graphpipe.importers.sailor_files import SailorFiles
from graphpipe.simulator import step_seconds

DATA = SHARED / "sailor-gh200"
TARGET = 0.06
HEADER = ("run", "stages", "groups", "micro-batch", "batch", "measured s", "predicted s", "error %")


def main(folder: Path = DATA) -> None:
    """Run the benchmark, write JSON and table.

    Args:
        folder: profiles, links and runs.
    """
    if not folder.exists():
        print(f"skipped: no measured runs at {folder}")
        return
    files = SailorFiles.load(folder)
    rows = [row for name in files.runs if (row := predicted_row(files, name))]
    for row in rows:
        print(*_line(row), sep="\t", flush=True)
    error = mean(abs(row["error"]) for row in rows)
    words = f"Mean error of {len(rows)} runs: {100 * error:.1f} % (target {100 * TARGET:.0f} %)."
    print(words)
    title, _, caption = (__doc__ or "").partition("\n\n")
    markdown("sailor", title.rstrip("."), f"{caption.strip()}\n\n{words}", HEADER, [_line(row) for row in rows])
    print(f"saved {save('sailor', rows, mean_error=error, target=TARGET, runs_of=folder.name)}")


def predicted_row(files: SailorFiles, name: str) -> dict[str, Any] | None:
    """Return the prediction of one run beside its measurement; None if the run was not measured."""
    run, plan = files.run(name), read_sailor(files.folder, name)
    if run.real is None:
        return None
    seconds = step_seconds(plan)
    return {
        "run": name,
        "stages": len(plan.stages),
        "groups": len(plan.used_devices),
        "micro_batch": run.mbs,
        "batch": run.gbs,
        "measured_seconds": run.real,
        "predicted_seconds": seconds,
        "error": seconds / run.real - 1,
    }


def _line(row: dict[str, Any]) -> list[str]:
    return [
        row["run"].replace("clariden-OPT-350-", "").replace("plan_config_", ""),
        *(str(row[field]) for field in ("stages", "groups", "micro_batch", "batch")),
        f"{row['measured_seconds']:.3f}",
        f"{row['predicted_seconds']:.3f}",
        f"{100 * row['error']:+.1f}",
    ]
