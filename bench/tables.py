"""Markdown tables and pictures of benchmark rows."""

from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

from bench.pages import show
from bench.record import RESULTS


def markdown(name: str, title: str, caption: str, header: Sequence[str], lines: Sequence[Sequence[object]]) -> Path:
    """Write `bench/results/NAME.md`, and the pages that show it, and return its path."""
    table = [header, ["---"] * len(header), *lines]
    text = "\n".join("| " + " | ".join(map(str, line)) + " |" for line in table)
    path = RESULTS / f"{name}.md"
    path.write_text(f"# {title}\n\n{caption}\n\n{text}\n")
    show(name, f"{caption}\n\n{text}")
    return path


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean."""
    return exp(sum(map(log, ratios)) / len(ratios))


def bars(name: str, title: str, groups: Sequence[str], series: dict[str, Sequence[float]], ylabel: str) -> Path | None:
    """Write `bench/results/NAME.svg`, a group of bars per label, and return its path; None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(max(6.0, 0.35 * len(groups) * len(series)), 4.0))
    width = 0.8 / len(series)
    for position, (label, values) in enumerate(series.items()):
        axes.bar([at + position * width for at in range(len(groups))], values, width, label=label)
    axes.set_xticks([at + 0.4 - width / 2 for at in range(len(groups))], groups, rotation=60, ha="right", fontsize=7)
    axes.set_ylabel(ylabel)
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=7)
    figure.tight_layout()
    path = RESULTS / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def curves(
    name: str, title: str, series: Mapping[str, Sequence[tuple[float, float]]], xlabel: str, ylabel: str
) -> Path | None:
    """Write `bench/results/NAME.svg`, a line per label on logarithmic axes; None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.0, 4.0))
    for label, points in series.items():
        axes.loglog(*zip(*points, strict=True), marker="o", label=label)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title, fontsize=9)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    path = RESULTS / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def ratio_rows(rows: Sequence[dict[str, Any]], ours: str, theirs: str) -> list[tuple[dict[str, Any], float]]:
    """Return, for every case in which both planners found a plan, our row and our throughput over theirs."""
    cases = {(row["model"], row["devices"], row["batch"], row["planner"]): row for row in rows if row["status"] == "ok"}
    found: list[tuple[dict[str, Any], float]] = []
    for (model, devices, batch, planner), row in cases.items():
        other = cases.get((model, devices, batch, theirs))
        if planner == ours and other:
            found.append((row, row["samples_per_second"] / other["samples_per_second"]))
    return found
