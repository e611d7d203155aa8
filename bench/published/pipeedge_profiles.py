"""The published profiles, and what is derived from them for a model and for hosts without any, for `pipeedge.py`."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from bench.record import SHARED

DATA = SHARED / "pipeedge"
HUGE, LARGE = "google/vit-huge-patch14-224-in21k", "google/vit-large-patch16-224"
WIDTHS, TOKENS, BLOCKS = {LARGE: 1024, HUGE: 1280}, {LARGE: 197, HUGE: 257}, {LARGE: 24, HUGE: 32}
SLOW = "-slow-link"
QUARTERS = 4
"""PipeEdge's layers are quarters of a block."""


@contextmanager
def derived_profiles(slow_megabits: float) -> Generator[Path]:
    """Yield a folder with the published profiles, ViT-Huge, and a copy of each device type with a slower link.

    A quarter of a block of ViT-Huge takes the mean seconds of that quarter of ViT-Large, times the ratio of their
    multiplications. Its memory grows with the weights, its messages with tokens and width.
    """
    models, types = (yaml.safe_load((DATA / f"{name}.yml").read_text()) for name in ("models", "device_types"))
    models[HUGE] = _huge_model(models[LARGE])
    for found in types.values():
        if profiles := found.get("model_profiles"):
            profiles[HUGE] = [_huge_profile(row) for row in profiles[LARGE]]
    types |= {f"{name}{SLOW}": {**found, "bw_Mbps": slow_megabits} for name, found in types.items()}
    with TemporaryDirectory() as folder:
        for name, body in (("models", models), ("device_types", types)):
            (Path(folder) / f"{name}.yml").write_text(yaml.safe_dump(body))
        yield Path(folder)


def multiplications(model: str, quarter: int) -> float:
    """Return those of a sample in a quarter of a block: attention, its output, and the two linear layers."""
    width, tokens = WIDTHS[model], TOKENS[model]
    return (3 * tokens * width**2 + 2 * tokens**2 * width, tokens * width**2, *[4 * tokens * width**2] * 2)[quarter]


def _means(values: list[float]) -> list[float]:
    """Return the mean of every quarter, without the first and the last block, which hold embedding and head."""
    inner = values[QUARTERS:-QUARTERS]
    return [sum(inner[at::QUARTERS]) / len(inner[at::QUARTERS]) for at in range(QUARTERS)]


def _huge_model(large: Mapping[str, Any]) -> dict[str, Any]:
    weights = (WIDTHS[HUGE] / WIDTHS[LARGE]) ** 2
    sent = WIDTHS[HUGE] * TOKENS[HUGE] / (WIDTHS[LARGE] * TOKENS[LARGE])
    layers = QUARTERS * BLOCKS[HUGE]
    memory = [each * weights for each in _means(large["mem_MB"])] * BLOCKS[HUGE]
    out = [round(each * sent) for each in large["parameters_out"][:QUARTERS]] * BLOCKS[HUGE]
    return {"layers": layers, "mem_MB": memory, "parameters_in": large["parameters_in"], "parameters_out": out}


def _huge_profile(large: Mapping[str, Any]) -> dict[str, Any]:
    quarters = enumerate(_means(large["time_s"]))
    seconds = [each * multiplications(HUGE, at) / multiplications(LARGE, at) for at, each in quarters]
    return {**large, "time_s": seconds * BLOCKS[HUGE]}
