"""`graphpipe simulate`: predict one training step of a plan."""

import argparse
from dataclasses import replace

from graphpipe.cli.arguments import Subparsers, add_verb, add_weights
from graphpipe.cli.output import Output
from graphpipe.costs.check_units import warn_of_units
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import to_body
from graphpipe.planners.gradients_apart import place_gradients
from graphpipe.planning.hand_plan import under_policy
from graphpipe.plans import Plan, Prediction
from graphpipe.report import summarise, summary_lines
from graphpipe.report.content.explanation import can_explain, explain, explanation_lines
from graphpipe.report.content.memory_choices import choice_lines, memory_choices
from graphpipe.report.tables.gradients_table import gradients_body, gradients_line, gradients_table
from graphpipe.report.tables.text_timeline import timeline
from graphpipe.simulator import predict, step_seconds
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace, save_chrome

EXAMPLE = """\
graphpipe plan mmt --cluster summit:2x4 --batch 64 -o plan.json
graphpipe simulate plan.json --timeline --chrome trace.json"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "simulate", "predict one training step of a plan", EXAMPLE)
    parser.add_argument("plan", metavar="PLAN", help="a file written by `graphpipe plan -o`")
    add_weights(parser)
    parser.add_argument("--mini-batches", type=int, metavar="N", help="of the trace, if the pipeline does not drain")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the trace")
    parser.add_argument("--chrome", metavar="FILE", help="write the trace for ui.perfetto.dev")
    parser.add_argument("--timeline", action="store_true", help="draw the step")
    parser.add_argument(
        "--explain", action="store_true", help="name the critical path and the bottleneck, and simulate what would help"
    )
    parser.add_argument(
        "--gradients-apart",
        action="store_true",
        help="place forwards, input gradients and weight gradients on any device, and simulate this",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate a step, show it and save it."""
    output = Output(args.json)
    plan = read_plan(args)
    if args.explain and not can_explain(plan):
        what = f"steps with weights '{plan.weights}' overlap, so none of them has a critical path of its own"
        if not plan.trains:
            what = "the plan is for inference, and its bound and its changes are not known"
        raise InvalidInput(what, where="--explain", remedy="Explain a plan that trains with --weights flush.")
    warn_of_units(plan.cost_model, args.plan)
    trace = simulate(plan, mini_batches=args.mini_batches)
    if args.output:
        trace.save(args.output)
    if args.chrome:
        save_chrome(args.chrome, [trace])
    summary = summarise(plan, _prediction(plan, trace, args.mini_batches))
    choices = memory_choices(plan)
    output.show(*summary_lines(summary), *(choice_lines(choices) if choices else []))
    if args.timeline:
        output.show(timeline(trace, output.width, plan))
    explanation = explain(plan, trace) if args.explain else None
    if explanation:
        output.show(*explanation_lines(explanation, trace.step_seconds))
    body = to_body(summary) | ({"memory_choices": to_body(choices)} if choices else {})
    if args.gradients_apart:
        rounds = place_gradients(plan)
        output.show(gradients_table(rounds), gradients_line(rounds, step_seconds(plan)))
        body["gradients_apart"] = gradients_body(rounds)
    output.emit(body | ({"explanation": to_body(explanation)} if explanation else {}))
    return 0


def read_plan(args: argparse.Namespace) -> Plan:
    """Return the plan of a file, under another weight policy if the arguments name one.

    Raises:
        InvalidInput: the file or the policy cannot be used.
        Infeasible: the versions of the weights do not fit in memory.
    """
    plan = Plan.load(args.plan)
    if args.weights is None and not args.predictor:
        return plan
    return under_policy(plan, args.weights or plan.weights, args.predictor)


def _prediction(plan: Plan, trace: Trace, mini_batches: int | None) -> Prediction:
    if plan.costs.loads or plan.weights != "flush" or mini_batches is not None:
        prediction = predict(plan)
        if plan.weights != "flush" or mini_batches is not None:
            return prediction
        return replace(prediction, bubble_fraction=trace.bubble_fraction, peak_bytes=trace.peak_bytes)
    return Prediction(
        step_seconds=trace.step_seconds, bubble_fraction=trace.bubble_fraction, peak_bytes=trace.peak_bytes
    )
