"""`python -m bench [NAME ...]`: run all benchmarks, or those named.

`python -m bench counts [OPTION ...]` and `python -m bench faults [OPTION ...]` take hours, and are not of all.
"""

import sys
from importlib import import_module

NAMES = (
    *(
        "planning",
        "figure6",
        "splits",
        "sharing",
        "mimo",
        "pipeedge",
        "table1",
        "sweeps",
        "profiles",
        "bounds",
        "scaling",
        "exhaustive",
        "memory",
        "largest-batch",
        "layerpipe",
    ),
    *(
        "runtime",
        "prediction",
        "measured",
        "zero_bubble",
        "loads",
        "resting",
        "rehearsal",
        "hosts",
        "start",
        "families",
        "async",
        "collage",
        "inference",
        "requests",
        "gpu",
    ),
)
LONG = ("counts", "faults")
"""Take hours, go on where they ended, and have options. They are run only by name."""
MODULES = {"async": "asynchronous", "largest-batch": "largest_batch"}
"""Of names that Python cannot import."""


def main(names: list[str]) -> int:
    """Run benchmarks by name, or a long one with its options."""
    if names and names[0] in LONG:
        import_module(f"bench.{names[0]}").main(names[1:])
        return 0

    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"unknown benchmark '{unknown[0]}'; known: {', '.join((*NAMES, *LONG))}", file=sys.stderr)
        return 2
    for name in names or NAMES:
        import_module(f"bench.{MODULES.get(name, name)}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
