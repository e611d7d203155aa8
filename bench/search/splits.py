"""Split operators: the planners of figure 6 with and without them, on mmt, dlrm and candle-uno at 4 to 32 devices.

Simulated, on the `summit` preset's analytic V100 model. The published baseline does not split operators. The same
baseline with `split="auto"` shows how much of the gain is the planner's.
"""

from typing import Any

import graphpipe as gp
from bench.case import plan_row
from bench.published.figure6 import CASES, PER_DEVICE, finish, rows_of_cases
from bench.tables import geometric_mean, markdown, ratio_rows

PLANNERS = ("graphpipe", "pipedream")
TARGETS = {("candle-uno", 32): 2.0, ("candle-uno", 128): 1.5, ("dlrm", 32): 1.9, ("dlrm", 128): 1.3}
"""Least gain of graphpipe from splits at 32 devices, by model and samples per device."""
CAPTION = (
    "Samples per second, **simulated** on the analytic V100 model of the `summit` preset (nothing was measured). "
    "`split` lets the planner split linear layers over concatenated branches (`--split auto`). mmt does not have such "
    "a layer, so its plans are the same. The last three columns are ratios: graphpipe with splits over graphpipe "
    "without, over pipedream as published, and over pipedream with splits."
)


def _rows(graph: gp.Graph, model: str, devices: int, each: int) -> list[dict[str, Any]]:
    """Return the rows of a case: each planner without and with splits."""
    rows: list[dict[str, Any]] = []
    for name in PLANNERS:
        plain = plan_row(graph, model, devices, devices * each, name)
        split = plan_row(graph, model, devices, devices * each, name, split="auto")
        rows += [plain, split | {"planner": f"{name}, split"}]
    return rows


def _line(rows: list[dict[str, Any]], model: str, devices: int, each: int) -> list[object]:
    case = [row for row in rows if (row["model"], row["devices"], row["batch"]) == (model, devices, devices * each)]
    rate = {row["planner"]: row["samples_per_second"] for row in case}
    ours = rate["graphpipe, split"]
    ratios = [f"{ours / rate[name]:.2f}" for name in ("graphpipe", "pipedream", "pipedream, split")]
    return [model, devices, each, *(f"{rate[name]:.0f}" for name in rate), *ratios]


def _targets(rows: list[dict[str, Any]]) -> dict[str, Any]:
    gains = ratio_rows(rows, "graphpipe, split", "graphpipe")
    published = ratio_rows(rows, "graphpipe, split", "pipedream")
    alike = ratio_rows(rows, "graphpipe, split", "pipedream, split")
    found = {(row["model"], row["batch"] // row["devices"]): ratio for row, ratio in gains if row["devices"] == 32}
    best = {m: max(r for row, r in published if (row["model"], row["devices"]) == (m, 32)) for m in PER_DEVICE}
    return {
        "gain_at_32": {f"{model} {each}": found[model, each] for model, each in TARGETS},
        "gain_at_32_targets": {f"{model} {each}": least for (model, each), least in TARGETS.items()},
        "least_gain": min(ratio for _, ratio in gains),
        "mean_over_pipedream": geometric_mean([ratio for _, ratio in published]),
        "least_over_pipedream": min(ratio for _, ratio in published),
        "best_over_pipedream_at_32": best,
        "mean_over_pipedream_with_splits": geometric_mean([ratio for _, ratio in alike]),
        "least_over_pipedream_with_splits": min(ratio for _, ratio in alike),
    }


def main() -> None:
    """Run the benchmark, write JSON and table, and print the targets."""
    rows = rows_of_cases(_rows)
    lines = [_line(rows, *case) for case in CASES]
    names = [f"{name}{suffix}" for name in PLANNERS for suffix in ("", ", split")]
    ratios = ["split / not", "split / pipedream", "split / pipedream, split"]
    header = ["model", "devices", "samples/device", *names, *ratios]
    markdown("splits", "Split operators: throughput", CAPTION, header, lines)
    finish("splits", rows, lines, _targets(rows))
