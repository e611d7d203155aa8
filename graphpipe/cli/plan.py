"""`graphpipe plan`: cut a model into a pipeline of stages."""

import argparse

from graphpipe.api import choose_backwards, choose_recorded_backwards, hand_plan, plan, simulate
from graphpipe.cli.arguments import Subparsers, add_problem, add_verb, add_weights
from graphpipe.cli.output import Output
from graphpipe.cli.problem import read_problem
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import to_body
from graphpipe.planners.by_hand import HandPlan, load_hand_plan
from graphpipe.planners.choose_splits import parse_split
from graphpipe.planners.improve.memory_curve import memory_curve
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import DEFAULT, PLANNERS
from graphpipe.plans import Plan
from graphpipe.report import summarise, summary_lines
from graphpipe.report.content.memory_choices import choice_lines, memory_choices
from graphpipe.report.tables.memory_curve_table import memory_curve_table
from graphpipe.report.tables.plan_table import plan_table
from graphpipe.report.tables.text_timeline import timeline
from graphpipe.simulator import step_seconds
from graphpipe.waiting import waiting

EXAMPLE = "graphpipe plan mmt-small --cluster local:4 --batch 32 --timeline -o plan.json"


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "plan", "cut a model into a graph of pipeline stages on a cluster", EXAMPLE)
    add_problem(parser)
    add_weights(parser, "flush")
    parser.add_argument("--planner", help=f"{', '.join(PLANNERS)} (default {DEFAULT})")
    parser.add_argument("--stages", metavar="FILE", help="use these hand-written stages instead of a planner")
    parser.add_argument("--inference", action="store_true", help="plan only forwards, for `graphpipe infer`")
    parser.add_argument("--timeline", action="store_true", help="draw the predicted step")
    parser.add_argument(
        "--memory-curve", action="store_true", help="print the step time of the plan's stages for less and less memory"
    )
    parser.add_argument(
        "--offload-to",
        choices=("host", "neighbours"),
        default="host",
        help="where stages short of memory may rest activations: host (default), the memory of their node, or "
        "neighbours, also on other devices with memory to spare",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plan")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make a plan, show it and save it."""
    output = Output(args.json)
    found = make_plan(args)
    assert found.prediction is not None
    if args.output:
        found.save(args.output)
    with waiting("computing the lower bound"):
        summary = summarise(found, found.prediction)
    choices = memory_choices(found)
    output.show(
        plan_table(found, found.prediction), *summary_lines(summary), *(choice_lines(choices) if choices else [])
    )
    if args.timeline:
        output.show(timeline(simulate(found), output.width, found))
    body = to_body(summary) | {"stage_list": [to_body(stage) for stage in found.stages]}
    if choices:
        body["memory_choices"] = to_body(choices)
    if args.memory_curve:
        curve = memory_curve(found, step_seconds)
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
    if args.stages and (args.planner or args.micro_batch or args.mixed_micro_batches or args.stages_per_device):
        what = "hand-written stages exclude --planner, --micro-batch, --mixed-micro-batches and --stages-per-device"
        raise InvalidInput(what, where="--stages", remedy="Leave those out, or --stages.")
    if args.inference and args.precision != "fp32":
        what = f"is {args.precision}, but inference runs in fp32"
        raise InvalidInput(what, where="--precision", remedy="Leave out --precision.")
    by_hand = load_hand_plan(args.stages) if args.stages else None
    problem, model = read_problem(args)
    found = _by_hand(problem, by_hand, args) if by_hand is not None else _by_planner(problem, args)
    if args.inference:
        return found
    if model.backward is not None:
        return choose_recorded_backwards(found, model.backward)
    return found if model.module is None else choose_backwards(found, model.module, captured=model.captured)


def _by_hand(problem: Problem, by_hand: HandPlan, args: argparse.Namespace) -> Plan:
    return hand_plan(
        problem.graph,
        problem.costs,
        problem.cluster,
        batch_size=problem.batch_size,
        stages=by_hand.stages,
        schedule=by_hand.schedule,
        split=parse_split(args.split),
        inference=args.inference,
        weights=args.weights,
        predictor=args.predictor,
    )


def _by_planner(problem: Problem, args: argparse.Namespace) -> Plan:
    return plan(
        problem.graph,
        problem.costs,
        problem.cluster,
        batch_size=problem.batch_size,
        planner=args.planner or DEFAULT,
        micro_batch=args.micro_batch,
        mixed_micro_batches=args.mixed_micro_batches,
        objective=args.objective,
        schedule=args.schedule,
        split=parse_split(args.split),
        inference=args.inference,
        weights=args.weights,
        predictor=args.predictor,
        stages_per_device=args.stages_per_device,
        offload_to=args.offload_to,
    )
