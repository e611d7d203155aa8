"""Write the rows of a benchmark as JSON, with the machine and the versions they were measured on."""

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


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
