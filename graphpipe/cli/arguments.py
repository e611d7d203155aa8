"""Arguments that several verbs take."""

import argparse
from textwrap import indent
from typing import TypeAlias

from graphpipe.cli.model_argument import MODEL_HELP
from graphpipe.planners.choose_schedule import CHOICES

# argparse has no public name for it.
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # pyright: ignore[reportPrivateUsage]
EXAMPLE = "for example:"


def add_verb(subparsers: Subparsers, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    """Return the parser of a new verb, with what every verb takes.

    Args:
        subparsers: it is added to.
        name: of the verb.
        summary: what it does, in half a sentence.
        example: lines for a shell, which the end of `--help` shows; they work when they are pasted.
    """
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"{EXAMPLE}\n{indent(example, '  ')}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object; words go to standard error")
    return parser


def add_problem(parser: argparse.ArgumentParser) -> None:
    """Add what a planner is given: model, cluster, batch and costs."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--cluster", required=True, metavar="C", help="a preset (local:4, summit:8x4) or a TOML file")
    parser.add_argument("--batch", required=True, type=int, metavar="B", help="samples of a mini-batch")
    parser.add_argument("--micro-batch", type=int, metavar="N", help="only this micro-batch size (default: search)")
    parser.add_argument(
        "--objective",
        default="step",
        choices=("step", "bottleneck"),
        help="what to minimise: the whole step (default), or the slowest stage alone, as published",
    )
    parser.add_argument(
        "--schedule",
        metavar="S",
        help=f"{', '.join(CHOICES)} (auto takes the one with the shortest step: the default of graphpipe, but for the "
        "published objective and for devices that share cores; else 1f1b)",
    )
    parser.add_argument("--mixed-micro-batches", action="store_true", help="let stages differ in micro-batch size")
    parser.add_argument("--costs", metavar="FILE", help="costs written by `graphpipe profile` (default: estimated)")
