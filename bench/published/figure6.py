"""Figure 6 of the paper: throughput of the planners on mmt, dlrm and candle-uno at 4 to 32 devices.

Simulated, on the `summit` preset's analytic V100 model, over several mini-batches because the published mini-batch
table is lost. Published ratios stand beside ours; the machine model was not tuned to them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import graphpipe as gp
from bench.case import SIMULATED, plan_row, summit
from bench.record import save
from bench.tables import bars, geometric_mean, markdown, ratio_rows
from graphpipe.model.zoo import zoo
from graphpipe.planners.lower_bound.lower_bound import step_bound
from graphpipe.planners.problem.partition import Problem

PER_DEVICE = {"mmt": (4, 8, 16, 32), "dlrm": (32, 64, 128, 256), "candle-uno": (32, 64, 128, 256)}
DEVICES = (4, 8, 16, 32)
CASES = tuple((model, devices, each) for model in PER_DEVICE for devices in DEVICES for each in PER_DEVICE[model])
"""Model, devices, and samples per device."""
PUBLISHED = {
    "mmt": (1.12, 1.27, 1.30, 1.66),
    "dlrm": (1.21, 1.40, 1.30, 1.47),
    "candle-uno": (0.92, 1.23, 1.23, 1.24),
}
"""GraphPipe over PipeDream, digitised, at 4, 8, 16, 32 devices."""
SHOWN = ("graphpipe", "1f1b", "published", "pipedream", "piper")
CAPTION = (
    "Samples per second, **simulated** on the analytic V100 model of the `summit` preset (nothing was measured). "
    "`graphpipe` also considers zero-bubble schedules, "
    "`1f1b` does not, `published` is the paper's objective (bottleneck) with synchronous 1F1B, "
    "`pipedream` and `piper` as the paper's evaluation runs them. The mini-batch varies because the published table "
    "of mini-batches is lost. The last column is the share of a proven upper bound on the throughput of "
    "any plan whose devices run one stage each, as all planners here make them. "
    "[Why ours and the published ratios differ](figure6-differences.md)."
)


def _line(rows: list[dict[str, Any]], model: str, devices: int, each: int) -> list[object]:
    batch = devices * each
    case = {r["planner"]: r for r in rows if (r["model"], r["devices"], r["batch"]) == (model, devices, batch)}

    def rate(name: str) -> float | None:
        return case[name].get("samples_per_second")

    def over(name: str, other: str) -> str:
        ours, theirs = rate(name), rate(other)
        return f"{ours / theirs:.2f}" if ours and theirs else "-"

    shown = [f"{rate(name):.0f}" if rate(name) else case[name]["status"] for name in SHOWN]
    bound = case["graphpipe"]["bound_samples_per_second"]
    published = PUBLISHED[model][DEVICES.index(devices)]
    ours = rate("graphpipe")
    share = f"{ours / bound:.2f}" if ours else "-"
    return [model, devices, each, *shown, over("graphpipe", "pipedream"), over("published", "pipedream"),
            published, over("graphpipe", "published"), share]  # fmt: skip


def _bound(graph: gp.Graph, devices: int, batch: int) -> float:
    """Return an upper bound on the samples per second of plans with one stage per device."""
    cluster = summit(devices)
    return batch / step_bound(Problem(graph, gp.estimate(graph, cluster), cluster, batch), shared=False)


FAR = 0.1
DIFFERENCES = (
    "Cases of [figure 6](figure6.md) whose ratio differs by more than 10 % from the published one. The ratio of "
    "the steps is the product of two ratios. `work` compares the seconds that all devices compute, which larger "
    "micro-batches shorten. `share of time at work` compares the shares of the step in which the devices compute. "
    "In the rest they wait: warm-up, drain, uneven stages, messages, all-reduce. The last column is the share of "
    "its time that our `pipedream` would have to wait for the published ratio. If this is more than it waits, the "
    "published baseline fills its devices less than ours, or it ran smaller mini-batches. If it is less, the "
    "published baseline fills them better. Nothing here was fitted to published figures."
)


def _difference(rows: list[dict[str, Any]], model: str, devices: int, each: int) -> list[object] | None:
    """Return the factors of a ratio that is far from the published one."""
    batch = devices * each
    case = {r["planner"]: r for r in rows if (r["model"], r["devices"], r["batch"]) == (model, devices, batch)}
    ours, theirs, published = case["graphpipe"], case["pipedream"], PUBLISHED[model][DEVICES.index(devices)]
    ratio = ours["samples_per_second"] / theirs["samples_per_second"]
    if abs(ratio / published - 1) <= FAR:
        return None
    working = [row["busy_seconds"] * row["samples_per_second"] / batch / devices for row in (ours, theirs)]
    work = theirs["busy_seconds"] / ours["busy_seconds"]
    assert abs(work * working[0] / working[1] / ratio - 1) < 1e-9, "the factors are those of the ratio"
    waits = [f"{100 * (1 - share):.0f} %" for share in (*working, working[1] * ratio / published)]
    plans = [f"{row['stages']} stages, depth {row['depth']}, b = {row['micro_batch']}" for row in (ours, theirs)]
    return [model, devices, each, f"{ratio:.2f}", published, *plans, f"{work:.2f}",
            f"{working[0] / working[1]:.2f}", *waits]  # fmt: skip


def rows_of_cases(rows: Callable[[gp.Graph, str, int, int], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the rows of all cases. The function is given a case's graph, model, devices and samples per device."""
    graphs = {model: gp.capture(*zoo(model)) for model in PER_DEVICE}
    return [row for model, devices, each in CASES for row in rows(graphs[model], model, devices, each)]


def finish(
    name: str, rows: Sequence[dict[str, Any]], lines: Sequence[Sequence[object]], targets: dict[str, Any]
) -> None:
    """Print a benchmark's lines and targets, and write its JSON."""
    for line in lines:
        print(*line, sep="\t")
    print(targets)
    print(f"saved {save(name, rows, targets=targets, simulated=SIMULATED)}")


def _rows(graph: gp.Graph, model: str, devices: int, each: int) -> list[dict[str, Any]]:
    """Return the rows of a case: each planner, with the bound."""
    bound = {"bound_samples_per_second": _bound(graph, devices, devices * each)}
    return [bound | plan_row(graph, model, devices, devices * each, name) for name in SHOWN]


def main() -> None:
    """Run the benchmark, write JSON, tables and picture, and print the targets."""
    rows = rows_of_cases(_rows)
    lines = [_line(rows, *case) for case in CASES]
    header = ["model", "devices", "samples/device", *SHOWN, "graphpipe / pipedream", "published / pipedream",
              "paper's ratio", "graphpipe / published", "of the bound"]  # fmt: skip
    markdown("figure6", "Figure 6: throughput", CAPTION, header, lines)
    differences = [_difference(rows, *case) for case in CASES]
    markdown("figure6-differences", "Figure 6: where ours and the published ratio differ", DIFFERENCES,
             ["model", "devices", "samples/device", "graphpipe / pipedream", "paper's ratio", "graphpipe", "pipedream",
              "work", "share of time at work", "graphpipe waits", "pipedream waits", "it would have to wait"],
             [line for line in differences if line])  # fmt: skip
    against, published = ratio_rows(rows, "graphpipe", "pipedream"), ratio_rows(rows, "graphpipe", "published")
    labels = [f"{row['model']} {row['devices']} x {row['batch'] // row['devices']}" for row, _ in against]
    bars("figure6", "Throughput over pipedream, simulated (summit preset)", labels,
         {"graphpipe / pipedream": [ratio for _, ratio in against]}, "ratio")  # fmt: skip
    best = {m: max(r for row, r in against if row["model"] == m and row["devices"] == 32) for m in PER_DEVICE}
    targets = {
        "least_over_pipedream": min(ratio for _, ratio in against),
        "mean_over_pipedream": geometric_mean([ratio for _, ratio in against]),
        "mean_over_published": geometric_mean([ratio for _, ratio in published]),
        "least_over_published": min(ratio for _, ratio in published),
        "best_at_32": best,
    }
    finish("figure6", rows, lines, targets)
