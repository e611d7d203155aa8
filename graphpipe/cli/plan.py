"""`graphpipe plan`: cut a model into a pipeline of stages."""

import argparse
from dataclasses import replace

from graphpipe.cli.arguments import Subparsers, add_problem, add_verb
from graphpipe.cli.output import Output
from graphpipe.cli.problem import read_problem
from graphpipe.cli.setting_options import add_settings, read_settings
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import to_body
from graphpipe.planners.improve.memory_curve import memory_curve
from graphpipe.planning.backwards import choose_backwards, choose_recorded_backwards
from graphpipe.planning.by_hand import load_hand_plan
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.planning.honoured import check_asked, check_by_hand
from graphpipe.planning.plan import plan
from graphpipe.planning.problem import check_batch_size
from graphpipe.planning.settings import PlanSection, PlanSettings
from graphpipe.plans import Plan
from graphpipe.report import summarise, summary_lines
from graphpipe.report.content.memory_choices import choice_lines, memory_choices
from graphpipe.report.tables.memory_curve_table import memory_curve_table
from graphpipe.report.tables.plan_table import plan_table
from graphpipe.report.tables.shared_work_table import shared_work_table
from graphpipe.report.tables.text_timeline import timeline
from graphpipe.simulator import step_seconds
from graphpipe.simulator.simulate import simulate
from graphpipe.waiting import waiting

EXAMPLE = "graphpipe plan mmt-small --cluster local:4 --batch 32 --timeline -o plan.json"


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "plan", "cut a model into a graph of pipeline stages on a cluster", EXAMPLE)
    add_problem(parser)
    add_settings(parser, PlanSettings)
    add_settings(parser, PlanSection, only=("stages",))
    parser.add_argument("--timeline", action="store_true", help="draw the predicted step")
    parser.add_argument(
        "--memory-curve", action="store_true", help="print the step time of the plan's stages for less and less memory"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plan")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make a plan, show it and save it."""
    output = Output(args.json)
    planned = make_plan(args)
    assert planned.prediction is not None
    if args.output:
        planned.save(args.output)
    with waiting("computing the lower bound"):
        summary = summarise(planned, planned.prediction)
    choices = memory_choices(planned)
    tables = [plan_table(planned, planned.prediction)]
    tables += [shared_work_table(planned)] if planned.shares_replicas else []
    output.show(*tables, *summary_lines(summary), *(choice_lines(choices) if choices else []))
    if args.timeline:
        output.show(timeline(simulate(planned), output.width, planned))
    body = to_body(summary) | {"stage_list": [to_body(stage) for stage in planned.stages]}
    if choices:
        body["memory_choices"] = to_body(choices)
    if args.memory_curve:
        curve = memory_curve(planned, step_seconds)
        output.show(memory_curve_table(curve))
        figures = [{"memory_bytes": it.memory_bytes, "step_seconds": it.step_seconds} for it in curve]
        body["memory_curve"] = [
            each | {"stage_list": to_body(it.plan)["stages"]} for each, it in zip(figures, curve, strict=True)
        ]
    output.emit(body)
    return 0


def make_plan(args: argparse.Namespace) -> Plan:
    """Return the plan of a planner, or of hand-written stages.

    Raises:
        Infeasible: no plan fits in memory.
        InvalidInput: an argument cannot be used.
    """
    check_batch_size(args.batch, "--batch")
    settings, by_hand = read_settings(args, PlanSettings), None
    if not args.stages:
        check_asked(settings, args.batch)
    else:
        check_by_hand(settings)
        by_hand = load_hand_plan(args.stages)
        if settings.schedule is not None:
            what = f"is '{settings.schedule}', but the schedule is in the file of stages"
            raise InvalidInput(what, where="--schedule", remedy="Leave it out, or change the file.")
    if args.inference and args.precision != "fp32":
        what = f"is {args.precision}, but inference runs in fp32"
        raise InvalidInput(what, where="--precision", remedy="Leave out --precision.")
    by_stages = by_hand.stages if by_hand is not None else ()
    shares = settings.tensor != 1 or any(stage.tensor > 1 for stage in by_stages)
    problem, model = read_problem(args, shares=shares)
    given = problem.graph, problem.costs, problem.cluster
    if by_hand is None:
        planned = plan(*given, settings, batch_size=args.batch)
    else:
        settings = replace(settings, schedule=by_hand.schedule)
        planned = hand_plan(*given, settings, batch_size=args.batch, stages=by_hand.stages)
    if args.inference:
        return planned
    if model.backward is not None:
        return choose_recorded_backwards(planned, model.backward)
    return planned if model.module is None else choose_backwards(planned, model.module, captured=model.captured)
