"""`python -m bench` runs all benchmarks that take minutes, `python -m bench NAME ...` those named.

`python -m bench NAME --help` shows what a benchmark does and its options.
"""

import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from bench.options import parser

MODULES = {
    "planning": "search.planning",
    "figure6": "published.figure6",
    "splits": "search.splits",
    "sharing": "search.sharing",
    "mimo": "published.mimo",
    "pipeedge": "published.pipeedge",
    "table1": "published.table1",
    "sweeps": "published.sweeps",
    "profiles": "search.profiles",
    "bounds": "search.bounds",
    "scaling": "search.scaling",
    "exhaustive": "search.exhaustive",
    "memory": "search.memory",
    "tensor": "search.language.tensor",
    "largest-batch": "search.largest_batch",
    "layerpipe": "published.layerpipe",
    "double-buffer": "search.language.double_buffer",
    "runtime": "running.runtime",
    "prediction": "running.predicted.prediction",
    "measured": "published.measured",
    "sailor": "published.sailor",
    "degrees": "published.degrees",
    "zero-bubble": "published.zero_bubble",
    "rank-memory": "running.memory.rank_memory",
    "loads": "running.predicted.loads",
    "resting": "running.predicted.resting",
    "compiled": "running.compiled",
    "compiled-memory": "running.memory.compiled_memory",
    "compiled-gradients": "families.compiled_gradients",
    "lengths": "running.lengths",
    "rehearsal": "running.predicted.rehearsal",
    "tuned": "running.predicted.tuned",
    "second-run": "running.predicted.second_run",
    "hosts": "running.hosts.hosts",
    "start": "running.hosts.start",
    "families": "families.families",
    "async": "running.learning.asynchronous",
    "async-tasks": "running.learning.tasks",
    "collage": "published.collage",
    "inference": "running.requests.inference",
    "requests": "running.requests.requests",
    "gpu": "running.predicted.gpu",
    "shared": "running.shared.shared",
    "shared-degrees": "running.shared.degrees",
    "layout": "running.shared.layout",
    "rank-gradients": "families.rank_gradients",
    "tensor-gradients": "families.tensor_gradients",
    "fault-rerouting": "faults.fault_rerouting",
    "counts": "search.counts",
    "clusters": "search.clusters.clusters",
    "faults": "faults.faults",
    "equivalence": "equivalence.equivalence",
    "user-errors": "faults.user_errors",
    "emulated": "faults.emulated",
}
"""The file of each benchmark. `python -m bench` runs them in this order."""
BY_NAME = (
    *("rank-gradients", "tensor-gradients", "fault-rerouting", "equivalence", "user-errors", "emulated", "counts"),
    "faults",
)
"""Are run only by name. All but the first three take hours, and go on where they ended."""


def main(words: Sequence[str]) -> int:
    """Run benchmarks by name, or one with its options; return 2 if there is no such benchmark."""
    names = [word.replace("_", "-") for word in words]
    if names[:1] in (["--help"], ["-h"]):
        print(overview())
        return 0
    if unknown := [name for name in names[:1] if name not in MODULES]:
        print(f"unknown benchmark '{unknown[0]}'; known: {', '.join(MODULES)}", file=sys.stderr)
        return 2
    if any(name not in MODULES for name in names):
        run(names[0], words[1:])
        return 0
    for name in names or (name for name in MODULES if name not in BY_NAME):
        run(name)
    return 0


def run(name: str, words: Sequence[str] = ()) -> None:
    """Run a benchmark with its options."""
    benchmark = import_module(f"bench.{MODULES[name]}").main
    benchmark(**vars(parser(name, benchmark).parse_args(words)))


def overview() -> str:
    """Return the help: what this program does, and a line for each benchmark."""
    lines = [f"  {name:16} {_first_line(module)}" for name, module in MODULES.items()]
    return "\n".join([__doc__ or "", "Benchmarks:", *lines])


def _first_line(module: str) -> str:
    path = Path(__file__).parent / f"{module.replace('.', '/')}.py"
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
