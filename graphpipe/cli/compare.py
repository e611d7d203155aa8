"""`graphpipe compare`: plan with several planners and compare the plans."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from graphpipe.cli.arguments import Subparsers, add_problem, add_verb
from graphpipe.cli.output import Output
from graphpipe.cli.problem import read_problem
from graphpipe.cli.run_in_parallel import End, run_in_parallel
from graphpipe.cli.setting_options import add_settings, read_settings
from graphpipe.errors import GraphPipeError, Infeasible, InvalidInput
from graphpipe.files.json_body import to_body
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import find_planner, planner_names
from graphpipe.planning.honoured import honoured
from graphpipe.planning.plan import plan
from graphpipe.planning.settings import PlanSettings, check_weights
from graphpipe.plans import Plan
from graphpipe.plans.stage import WeightPolicy
from graphpipe.report import Outcome, Summary, compare_table, summarise
from graphpipe.report.tables.text_timeline import timeline
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace
from graphpipe.units import format_seconds

INFEASIBLE, FAILED = 3, 4

EXAMPLE = "graphpipe compare mmt --cluster summit:2x4 --batch 64 --planners graphpipe,spp --timeline"


class Run(NamedTuple):
    """A planner under a weight policy."""

    planner: str
    weights: WeightPolicy

    def __str__(self) -> str:
        return self.planner if self.weights == "flush" else f"{self.planner}, {self.weights}"


class PlannerResult(NamedTuple):
    """The plan of one planner, summarised."""

    summary: Summary
    trace: Trace | None
    """The predicted step, if it will be drawn."""
    plan: Plan | None
    """Of the trace."""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "compare", "plan with several planners, and compare the plans", EXAMPLE)
    add_problem(parser)
    names = [each.name for each in fields(PlanSettings) if each.name not in ("planner", "weights", "inference")]
    add_settings(parser, PlanSettings, only=names)
    parser.add_argument(
        "--weights",
        default="flush",
        metavar="A,B",
        help="weight policies, each compared with every planner (default: flush)",
    )
    parser.add_argument("--planners", metavar="A,B", help="planners (default: all)")
    parser.add_argument(
        "--search-seconds",
        "--timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="end a planner that has not found a plan after these seconds (default 600)",
    )
    parser.add_argument("--timeline", action="store_true", help="draw the predicted step of every plan")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan with each planner and weight policy, as many at the same time as there are cores, and show a row for each.

    Returns:
        0 if there is a plan. Otherwise 4 if a planner failed, 3 if no plan fits.
    """
    output = Output(args.json)
    if not args.search_seconds > 0:
        raise InvalidInput(f"is {args.search_seconds}, must be positive", where="--search-seconds")
    names = (
        list(planner_names(trains=True))
        if args.planners is None
        else [name.strip() for name in args.planners.split(",")]
    )
    for name in names:
        find_planner(name)
    asked = [_asked(args, name, policy) for policy in _policies(args) for name in names]
    runs = [Run(settings.planner, settings.weights) for settings in asked]
    followed = {str(run): honoured(settings) for run, settings in zip(runs, asked, strict=True)}
    notes = _notes(asked, followed)
    if args.planners is None:
        notes += _of_inference()
    problem, _ = read_problem(args)
    with _progress() as bar:
        task = bar.add_task("planners", total=len(followed), name="")
        ends = run_in_parallel(
            list(followed),
            partial(_search, problem, followed, args.timeline),
            timeout=args.search_seconds,
            imports=["scipy.optimize"],  # of the lower bound
            on_end=lambda name, end: _show_end(bar, task, name, end),
        )
    refused = [end.what for end in ends if isinstance(end.what, InvalidInput)]
    if len(refused) == len(ends):
        raise refused[0]
    outcomes = [_outcome(each, end, args.search_seconds) for each, end in zip(runs, ends, strict=True)]
    output.show(compare_table(outcomes))
    reasons = [(Run(outcome.planner, outcome.weights), outcome.reason) for outcome in outcomes]
    output.show(*(f"{run}: {reason}" for run, reason in reasons if reason), *notes)
    for each, end in zip(followed, ends, strict=True):
        if isinstance(end.what, PlannerResult) and end.what.trace is not None:
            output.show(each, timeline(end.what.trace, output.width, end.what.plan))
    output.emit({"rows": [_row(outcome) for outcome in outcomes]})
    statuses = {outcome.status for outcome in outcomes}
    if statuses & {"ok", "timeout"}:
        return 0
    return FAILED if "failed" in statuses else INFEASIBLE


def _show_end(bar: Progress, task: TaskID, name: str, end: End) -> None:
    # A line for each planner as it ends, above the bar. The table comes when all have ended.
    if end.how == "timeout":
        line = f"{name}: no plan in time"
    elif isinstance(end.what, PlannerResult):
        summary = end.what.summary
        line = f"{name}: {format_seconds(summary.mini_batch_seconds)} a step, {summary.stages} stages"
    else:
        line = f"{name}: no plan"
    bar.update(task, advance=1, name="")
    if not bar.disable:
        bar.console.print(line)


def _progress() -> Progress:
    return Progress(
        TextColumn("planning"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[name]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def _policies(args: argparse.Namespace) -> list[WeightPolicy]:
    policies = cast("list[WeightPolicy]", [name.strip() for name in args.weights.split(",")])
    if args.predictor and "predict" not in policies:
        what = f"is '{args.predictor}', but --weights does not name predict"
        raise InvalidInput(what, where="--predictor", remedy="Leave it out, or add predict to --weights.")
    for name in policies:
        check_weights(name, args.predictor if name == "predict" else "")
    return policies


def _asked(args: argparse.Namespace, planner: str, weights: WeightPolicy) -> PlanSettings:
    predictor = args.predictor if weights == "predict" else ""
    return read_settings(args, PlanSettings, planner=planner, weights=weights, predictor=predictor)


def _notes(asked: Sequence[PlanSettings], followed: Mapping[str, PlanSettings]) -> list[str]:
    """Return a line for each setting that some of the planners do not follow.

    Raises:
        InvalidInput: none of them follows it.
    """
    notes: list[str] = []
    for field in fields(PlanSettings):
        pairs = zip(asked, followed.items(), strict=True)
        without = [run for before, (run, it) in pairs if getattr(before, field.name) != getattr(it, field.name)]
        option = f"--{field.name.replace('_', '-')}"
        if len(without) == len(asked):
            what = f"is not followed by {', '.join(without)}"
            raise InvalidInput(what, where=option, remedy="Leave it out, or add the planner graphpipe.")
        if without:
            notes.append(f"without {option}, which they do not follow: {', '.join(without)}")
    return notes


def _of_inference() -> list[str]:
    names = sorted({*planner_names(trains=False)} - {*planner_names(trains=True)})
    return [f"without {name}, which plans inference: graphpipe plan --inference --planner {name}" for name in names]


def _search(problem: Problem, settings: Mapping[str, PlanSettings], with_trace: bool, run: str) -> PlannerResult:
    compared_plan = plan(problem.graph, problem.costs, problem.cluster, settings[run], batch_size=problem.batch_size)
    assert compared_plan.prediction is not None
    return PlannerResult(
        summarise(compared_plan, compared_plan.prediction),
        simulate(compared_plan) if with_trace else None,
        compared_plan if with_trace else None,
    )


def _outcome(run: Run, end: End, timeout: float) -> Outcome:
    who: dict[str, Any] = {"planner": run.planner, "weights": run.weights}
    match end:
        case End("done", PlannerResult() as planner_result):
            return Outcome(**who, status="ok", summary=planner_result.summary)
        case End("raised", Infeasible() as error):
            return Outcome(**who, status="infeasible", reason=str(error))
        case End("raised", GraphPipeError() as error):
            return Outcome(**who, status="failed", reason=str(error))
        case End("raised", error):
            return Outcome(**who, status="failed", reason=f"{type(error).__name__}: {error}")
        case End("timeout"):
            return Outcome(**who, status="timeout", reason=f"no plan within {format_seconds(timeout)}")
        case _:
            return Outcome(**who, status="failed", reason=f"its process died with code {end.what}")


def _row(outcome: Outcome) -> dict[str, Any]:
    summary = (
        dict.fromkeys(field.name for field in fields(Summary)) if outcome.summary is None else to_body(outcome.summary)
    )
    named = {"planner": outcome.planner, "weights": outcome.weights}
    return summary | named | {"status": outcome.status, "reason": outcome.reason or None}
