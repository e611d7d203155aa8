"""`python -m bench [NAME ...]`: run all benchmarks, or those named."""

import sys
from importlib import import_module

NAMES = (
    *(
        "planning",
        "figure6",
        "splits",
        "sharing",
        "table1",
        "sweeps",
        "profiles",
        "bounds",
        "scaling",
        "counts",
        "exhaustive",
        "memory",
    ),
    *(
        "runtime",
        "prediction",
        "measured",
        "zero_bubble",
        "loads",
        "rehearsal",
        "hosts",
        "start",
        "families",
        "async",
        "collage",
        "inference",
        "gpu",
    ),
)
MODULES = {"async": "asynchronous"}
"""Of names that Python cannot import: `async` is a keyword."""


def main(names: list[str]) -> int:
    """Run benchmarks by name."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"unknown benchmark '{unknown[0]}'; known: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in names or NAMES:
        import_module(f"bench.{MODULES.get(name, name)}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
