"""Functions that return, raise or are killed, in a module that other processes can import."""

import os
import time
from pathlib import Path
from typing import Any

from graphpipe.cli import compare


def work(name: str) -> str:
    match name.partition(" "):
        case "raise", _, text:
            raise ValueError(text)
        case "die", _, code:
            os._exit(int(code))
        case "sleep", _, seconds:
            time.sleep(float(seconds))
        case "meet", _, path:  # Two of them only end if they run at the same time.
            own = Path(path) / str(os.getpid())
            own.touch()
            while len(list(Path(path).iterdir())) < 2:
                time.sleep(0.01)
        case _:
            pass
    return name.upper()


def search(problem: Any, settings: dict[str, Any], with_trace: bool, name: str) -> object:
    """Replaces the search of `compare`: one planner fails and another is killed."""
    match name:
        case "spp":
            raise RuntimeError("no luck")
        case "piper":
            os._exit(9)
        case _:
            return compare._search(problem, settings, with_trace, name)
