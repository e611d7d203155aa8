"""Second runs: how far is a training predicted that has the costs of the one before?

**Measured**, on two local ranks: the examples, trained several times. The first run has the costs of its configuration.
Each later one has the costs that the run before it has corrected (`plan.costs=runs/NAME`), and is predicted by these.
Nothing is fitted to the runs that are judged. `measured` are the median steps of all runs, with everything that ranks
do in a step, and `errors` those of the predictions from the second run on. `error` is their median. `paces` is how far
the median steps of two runs of the same plan after each other are apart, in the median: where it is large, the machine
has changed its pace, and no costs of the run before could tell. The last run has half of the micro-batch, and so
twice as many tasks: `another plan` is its error by the costs of the run before it. `besides` is what the last but one
has learned of a step besides tasks, messages and updates. `load` are the processes that waited for the two cores or had
one, in the mean over a minute, the most of all runs.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import graphpipe as gp
from bench.record import ROOT, append_row, read_rows, save
from bench.tables import markdown
from graphpipe.training.run_folder.finished_run import FinishedRun

NAME = "second-run"
RUNS = 4
"""Of the same settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A training of `examples`."""

    settings: tuple[str, ...]
    """Besides those of its file."""
    micro_batch: int
    """Half of the one that the planner chooses."""


EXAMPLES = {
    "digits": Example(settings=("train.epochs=7",), micro_batch=64),
    "segmentation": Example(settings=("train.steps=80",), micro_batch=16),
    "clicks": Example(settings=("train.epochs=4", "train.checkpoint_every=25"), micro_batch=64),
}
"""Of 80 to 100 steps each."""


def measure(name: str) -> dict[str, Any]:
    """Train an example several times, each time with the costs of the run before."""
    with TemporaryDirectory() as folder:
        loads: list[float] = []

        def run(*settings: str) -> FinishedRun:
            done = gp.train(
                ROOT / "examples" / f"{name}.toml",
                overrides=["cluster=local:2", *EXAMPLES[name].settings, f"run.directory={folder}", *settings],
                tell=None,
            )
            loads.append(os.getloadavg()[0])
            return done

        runs = [run()]
        for _ in range(RUNS - 1):
            runs.append(run(_costs_of(runs[-1])))
        other = run(_costs_of(runs[-1]), f"plan.micro_batch={EXAMPLES[name].micro_batch}")
    last = runs[-1].learned
    assert last is not None
    alike = [(one, next_one) for one, next_one in pairwise(runs) if one.plan.stages == next_one.plan.stages]
    return {
        "example": name,
        "steps": runs[0].result.steps,
        "stages": [f"{len(stage.ops)}x{stage.degree}" for stage in runs[-1].plan.stages],
        "measured": [each.result.step_seconds_measured for each in runs],
        "errors": [_error(each) for each in runs[1:]],
        "paces": [_seconds(next_one) / _seconds(one) - 1 for one, next_one in alike],
        "another": _error(other),
        "another_measured": _seconds(other),
        "besides": last.costs.step_overhead_seconds,
        "load": max(loads),
    }


def _costs_of(run: FinishedRun) -> str:
    return f"plan.costs={Path(run.folder.path).absolute()}"


def _seconds(run: FinishedRun) -> float:
    return run.result.step_seconds_measured


def _error(run: FinishedRun) -> float:
    predicted = run.result.step_seconds_predicted
    assert predicted is not None
    return predicted / _seconds(run) - 1


def main(names: Annotated[Sequence[str], EXAMPLES] = (), *, again: bool = False) -> None:
    """Train what is missing, and write the table and JSON.

    Args:
        names: examples to train. Without names, all of them.
        again: train all of them again.
    """
    known = [] if again else read_rows(NAME)
    for name in names or EXAMPLES:
        if all(row["example"] != name for row in known):
            known.append(measure(name))
            append_row(NAME, known[-1])
    rows = [row for name in EXAMPLES for row in known if row["example"] == name]
    header = ["example", "steps", "stages", "measured ms", "errors %", "error %", "paces %", "another plan %"]
    caption = (__doc__ or "").partition("\n\n")[2].strip()
    markdown(NAME, "Second runs", caption, [*header, "besides ms", "load"], [_line(row) for row in rows])
    for row in rows:
        print(*_line(row), sep="\t")
    print(f"saved {save(NAME, rows)}")


def _line(row: dict[str, Any]) -> list[object]:
    return [
        row["example"],
        row["steps"],
        " ".join(row["stages"]),
        " ".join(f"{1e3 * seconds:.1f}" for seconds in row["measured"]),
        " ".join(f"{100 * error:+.0f}" for error in row["errors"]),
        f"{100 * median(map(abs, row['errors'])):.1f}",
        f"{100 * median(map(abs, row['paces'])):.1f}" if row["paces"] else "",
        f"{100 * row['another']:+.0f}",
        f"{1e3 * row['besides']:.1f}",
        f"{row['load']:.1f}",
    ]


if __name__ == "__main__":
    main()
