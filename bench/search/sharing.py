"""Several stages on one device: the default planner with at most 1, 2 and 4 stages per device, on the zoo.

Simulated, on the `summit` preset's analytic V100 model. `vision-language` has samples of one to four images.
"""

from collections.abc import Mapping
from typing import Any

import graphpipe as gp
from bench.case import SIMULATED, plan_row
from bench.record import save
from bench.tables import geometric_mean, markdown
from graphpipe.model.zoo import zoo

EACH: Mapping[str, int] = {
    "mmt": 16,
    "dlrm": 128,
    "candle-uno": 128,
    "case-study": 16,
    "gpt": 16,
    "two-tower": 16,
    "attention-residuals": 16,
    "unet": 16,
    "densenet": 16,
    "vision-language": 8,
}
"""Samples of a mini-batch per device."""
LOADS: Mapping[str, Mapping[str, Mapping[float, float]]] = {
    "vision-language": {"vision": {1: 0.4, 2: 0.3, 3: 0.2, 4: 0.1}}
}
DEVICES = (8, 16, 32)
STAGES = (1, 2, 4)
SCHEDULES = {"1f1b": "1f1b", "graphpipe": "auto"}
"""Names of `bench.case.PLANNERS`, and their schedules in the table."""
TARGETS = {("gpt", 32, "1f1b"): 1.05, ("vision-language", 16, "1f1b"): 1.15}
"""Least gain with 4 stages per device, by model, devices and planner."""
CAPTION = (
    "Step times in milliseconds, **simulated** on the analytic V100 model of the `summit` preset (nothing was "
    "measured). A device hosts at most 1, 2 or 4 stages (`--stages-per-device`). The gain is how many times as fast "
    "plans with at most 4 are as plans with 1. The last two columns are the processor seconds of the search."
)
HEADER = ("model", "devices", "samples/device", "schedule", "1", "2", "4", "gain", "search 1", "search 4")


def _rows(graph: gp.Graph, model: str, devices: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in SCHEDULES:
        for most in STAGES:
            options = {"stages_per_device": most, "loads": LOADS.get(model)}
            row = plan_row(graph, model, devices, devices * EACH[model], name, **options)
            found.append(row | {"stages_per_device": most})
    return found


def _line(rows: list[dict[str, Any]]) -> list[object]:
    first, steps = rows[0], [row["batch"] / row["samples_per_second"] for row in rows]
    return [
        *(first["model"], first["devices"], EACH[first["model"]], SCHEDULES[first["planner"]]),
        *(f"{1e3 * seconds:.1f}" for seconds in steps),
        f"{steps[0] / steps[-1]:.3f}",
        *(f"{row['cpu_seconds']:.2f}" for row in (rows[0], rows[-1])),
    ]


def _targets(groups: list[list[dict[str, Any]]]) -> dict[str, Any]:
    gains = {(rows[0]["model"], rows[0]["devices"], rows[0]["planner"]): _gain(rows) for rows in groups}
    return {
        "gain": {" ".join(map(str, key)): gains[key] for key in TARGETS},
        "gain_targets": {" ".join(map(str, key)): least for key, least in TARGETS.items()},
        "least_gain": min(gains.values()),
        "mean_gain": geometric_mean(list(gains.values())),
        "most_cpu_seconds": max(row["cpu_seconds"] for rows in groups for row in rows),
    }


def _gain(rows: list[dict[str, Any]]) -> float:
    return rows[-1]["samples_per_second"] / rows[0]["samples_per_second"]


def main() -> None:
    """Run the benchmark, write JSON and table, and print the targets."""
    graphs = {model: gp.capture(*zoo(model)) for model in EACH}
    rows = [row for model in EACH for devices in DEVICES for row in _rows(graphs[model], model, devices)]
    groups = [rows[start : start + len(STAGES)] for start in range(0, len(rows), len(STAGES))]
    markdown("sharing", "Several stages on one device", CAPTION, HEADER, [_line(group) for group in groups])
    for group in groups:
        print(*_line(group), sep="\t")
    targets = _targets(groups)
    print(targets)
    print(f"saved {save('sharing', rows, targets=targets, simulated=SIMULATED)}")
