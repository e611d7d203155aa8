"""Arguments that several verbs have."""

import argparse
from textwrap import indent
from typing import TypeAlias

from graphpipe.cli.model_argument import MODEL_HELP
from graphpipe.cli.setting_options import add_settings
from graphpipe.graph import PRECISIONS
from graphpipe.planning.settings import PlanSection

# argparse has no public name for this type.
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # pyright: ignore[reportPrivateUsage]
EXAMPLE = "for example:"


def add_verb(subparsers: Subparsers, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    """Return the parser of a new verb, with the arguments that every verb has.

    Args:
        subparsers: of the command line.
        name: of the verb.
        summary: what the verb does, without a full stop.
        example: shell commands for the end of `--help`. They work when pasted.
    """
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"{EXAMPLE}\n{indent(example, '  ')}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object; everything else goes to standard error"
    )
    return parser


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Add the precision of the training."""
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help="of forwards in the training (train.precision): bf16 and fp16 count what torch's autocast saves and sends "
        "(default fp32)",
    )


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add a weight policy that replaces the plan's own."""
    parser.add_argument(
        "--weights",
        metavar="W",
        help="which weights a micro-batch sees: flush (the pipeline drains after every mini-batch), or without a flush "
        "stash, vertical-sync, double-buffer, moving-average or predict (default: the plan's own)",
    )
    parser.add_argument("--predictor", default="", metavar="P", help="of predict: pipeoptim, spectrain or xpipe")


def add_problem(parser: argparse.ArgumentParser) -> None:
    """Add the input of a planner: model, cluster, batch and costs."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--cluster", required=True, metavar="C", help="a preset (local:4, summit:8x4) or a TOML file")
    parser.add_argument("--batch", required=True, type=int, metavar="B", help="samples per mini-batch")
    parser.add_argument(
        "--costs",
        metavar="FILE",
        help="costs written by `graphpipe profile`, or the folder of a run (default: estimated costs)",
    )
    add_settings(parser, PlanSection, only=("look_into", "cache"))
    add_precision(parser)
