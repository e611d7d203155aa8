"""Write the rows of a benchmark as JSON, with the machine and the versions they were measured on."""

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
"""The checkout."""
SHARED = ROOT.parent / "shared" / "data"
"""Published data, which may be absent."""
RESULTS = Path(__file__).parent / "results"


def read_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows in `bench/results/NAME.jsonl`, which earlier calls of a long benchmark appended."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def append_row(name: str, row: dict[str, Any]) -> None:
    """Add a row to `bench/results/NAME.jsonl`."""
    with (RESULTS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        print(json.dumps(row), file=file, flush=True)


def save(name: str, rows: Sequence[dict[str, Any]], **notes: Any) -> Path:
    """Write `bench/results/NAME.json` and return its path."""
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    versions = {package: version(package) for package in ("torch", "numpy")}
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps({"machine": machine, "versions": versions, **notes, "rows": list(rows)}, indent=1) + "\n"
    )
    return path
