"""Arguments that several verbs have."""

import argparse
from textwrap import indent
from typing import TypeAlias

from graphpipe.cli.model_argument import MODEL_HELP
from graphpipe.graph import PRECISIONS
from graphpipe.planners.choose_schedule import schedule_choices

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


def add_no_cache(parser: argparse.ArgumentParser) -> None:
    """Add the option that turns the cache off."""
    parser.add_argument("--no-cache", action="store_true", help="neither use nor keep captures and measured costs")


def add_look_into(parser: argparse.ArgumentParser) -> None:
    """Add the submodules to look into."""
    parser.add_argument(
        "--look-into",
        metavar="NAMES",
        help="look into these submodules, which are one operator each by default: names with commas in between, or '*' "
        "for all, down to single operations",
    )


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Add the precision of the training."""
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help="of forwards in the training (train.precision): bf16 and fp16 count what torch's autocast saves and sends "
        "(default fp32)",
    )


def add_weights(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the weight policy. Without a default, a plan file keeps its own."""
    kept = f"default {default}" if default else "default: the plan's own"
    parser.add_argument(
        "--weights",
        default=default,
        metavar="W",
        help="which weights a micro-batch sees: flush (the pipeline drains after every mini-batch), or without a flush "
        f"stash, vertical-sync, double-buffer, moving-average or predict ({kept})",
    )
    parser.add_argument("--predictor", default="", metavar="P", help="of predict: pipeoptim, spectrain or xpipe")


def add_problem(parser: argparse.ArgumentParser) -> None:
    """Add the input of a planner: model, cluster, batch and costs."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--cluster", required=True, metavar="C", help="a preset (local:4, summit:8x4) or a TOML file")
    parser.add_argument("--batch", required=True, type=int, metavar="B", help="samples per mini-batch")
    parser.add_argument("--micro-batch", type=int, metavar="N", help="only this micro-batch size (default: search)")
    parser.add_argument(
        "--objective",
        choices=("step", "bottleneck", "throughput", "latency"),
        help="what to minimise: the whole step (default), or only the slowest stage, as published; with --inference "
        "what to improve: throughput (default) or latency",
    )
    parser.add_argument(
        "--schedule",
        metavar="S",
        help=f"{', '.join(schedule_choices())} (auto takes the one with the shortest step: the default of graphpipe, "
        "but for the published objective and for devices that share cores; else 1f1b)",
    )
    parser.add_argument(
        "--mixed-micro-batches", action="store_true", help="allow a different micro-batch size for each stage"
    )
    parser.add_argument(
        "--costs", metavar="FILE", help="costs written by `graphpipe profile` (default: estimated costs)"
    )
    parser.add_argument(
        "--load",
        action="append",
        metavar="NAME=LOADS",
        help="shares of samples by how much work they are for some operators (vision=1:0.5,4:0.5), or the work of "
        "some samples (vision=1,1,4); NAME is a submodule, an operator, a pattern or a model input (default: alike)",
    )
    parser.add_argument(
        "--stages-per-device",
        type=int,
        metavar="N",
        help="the most stages that a device may host; with 1, every stage has devices of its own, as in plans of the "
        "baselines (default: 4, or 1 if devices share cores)",
    )
    parser.add_argument(
        "--split",
        default="none",
        metavar="OPS",
        help="split these operators, so that their parts can be in different stages: names with commas in between "
        "(NAME:4 splits by outputs in 4 parts, NAME:rows4 splits an embedding by rows in 4 parts), or auto for those "
        "whose split shortens the step (default: none)",
    )
    add_look_into(parser)
    add_precision(parser)
    add_no_cache(parser)
