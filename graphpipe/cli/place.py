"""`graphpipe place`: choose which backend runs which operators of a plan for inference, by measurement."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.model_argument import MODEL_HELP
from graphpipe.cli.output import Output
from graphpipe.cli.setting_options import add_settings
from graphpipe.errors import InvalidInput
from graphpipe.files.cache_folder import cache_folder
from graphpipe.files.json_body import to_body
from graphpipe.planning.settings import PlanSection
from graphpipe.plans.estimates import period_seconds
from graphpipe.units import format_seconds
from graphpipe.waiting import waiting

if TYPE_CHECKING:
    from graphpipe.profiler.placement.place import StagePlacement

EXAMPLE = "graphpipe place candle-uno-small --batch 16 --backends eager -o placed.json"


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "place", "choose a backend for every operator of a plan for inference", EXAMPLE)
    parser.add_argument("plan", metavar="PLAN|MODEL", help=f"a file of `graphpipe plan --inference`, or {MODEL_HELP}")
    parser.add_argument("--model", metavar="MODEL", help="the model of the plan file")
    parser.add_argument("--batch", type=int, metavar="B", help="with a MODEL: samples that are computed together")
    parser.add_argument(
        "--backends", metavar="NAMES", help="with commas in between (default: all that are installed; eager always)"
    )
    parser.add_argument(
        "--longest", type=int, default=2, metavar="N", help="most operators of a pattern that is measured (default: 2)"
    )
    parser.add_argument(
        "--rounds", type=int, default=15, metavar="N", help="runs of every candidate that are compared (default: 15)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the evolutionary search (default: 0)")
    parser.add_argument(
        "--search-seconds",
        type=float,
        default=120.0,
        metavar="S",
        help="limit of the evolutionary search, for each stage and backend (default: 120)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plan with its backends")
    add_settings(parser, PlanSection, only=("cache",))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Place every stage, show what was measured, and save the plan."""
    output = Output(args.json)
    is_plan = args.plan.endswith(".json")
    for name, wanted in (("model", is_plan), ("batch", not is_plan)):
        if (getattr(args, name) is None) == wanted:
            given = "a plan file is given" if is_plan else "a model is given"
            what = f"is missing, and {given}" if wanted else f"does not go together: {given}"
            raise InvalidInput(what, where=f"--{name}", remedy="Give it." if wanted else "Leave it out.")
    for name in ("batch", "longest", "rounds"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise InvalidInput(f"is {value}, must be at least 1", where=f"--{name}")
    if not args.search_seconds >= 0:
        raise InvalidInput(f"is {args.search_seconds}, must be at least 0", where="--search-seconds")
    from graphpipe.inference.placed_model import read_placed_model
    from graphpipe.profiler.placement.measured_costs import with_measured_costs
    from graphpipe.profiler.placement.place import PlaceOptions, place
    from graphpipe.training.train import print_to_stderr

    cache = cache_folder() if args.cache else None
    with waiting(f"capturing {args.model or args.plan}"):
        placed_model = read_placed_model(args.model or args.plan, args.plan if is_plan else None, args.batch, cache)
    options = PlaceOptions(
        backends=tuple(args.backends.split(",")) if args.backends else (),
        longest=args.longest,
        rounds=args.rounds,
        seed=args.seed,
        search_seconds=args.search_seconds,
        cache=cache / "backends" if cache else None,
    )
    with waiting("measuring patterns"):
        plan, stages = place(
            placed_model.plan, placed_model.module, placed_model.inputs, placed_model.captured, options, print_to_stderr
        )
    before, plan = plan, with_measured_costs(plan, stages)
    if args.output:
        plan.save(args.output)
    rates = [each.batch_size / period_seconds(each) for each in (before, plan)]
    output.show(*_lines(stages), *_rates(*rates) if plan is not before else ())
    output.emit({"stages": [to_body(each) for each in stages], "output": args.output, "samples_per_second": rates[1]})
    return 0


def _lines(stages: "Sequence[StagePlacement]") -> list[RenderableType]:
    lines: list[RenderableType] = []
    for each in stages:
        best = min((seconds, name) for name, seconds in each.seconds.items() if name in _single(each))
        fastest = each.seconds[each.chosen]
        lines.append(
            f"stage {each.stage}: {each.chosen} takes {format_seconds(fastest)} per micro-batch, "
            f"the best backend alone ({best[1]}) {format_seconds(best[0])}: {best[0] / fastest:.2f} times as fast"
        )
        lines += [f"  {name}: {format_seconds(seconds)}" for name, seconds in each.seconds.items()]
        lines += [f"  {name} alone cannot run it: {reason}" for name, reason in each.failed.items()]
        lines += [f"  region on {region.backend}: {', '.join(region.ops)}" for region in each.regions]
    return lines


def _rates(before: float, after: float) -> list[str]:
    return [f"a full pipeline: {after:,.1f} samples/s by these measurements, {before:,.1f} by the plan's costs before"]


def _single(placement: "StagePlacement") -> list[str]:
    return [name for name in placement.seconds if not name.startswith("operators")]
