"""`graphpipe rehearse`: run one process per device with emulated compute, and compare with the simulator."""

import argparse
from dataclasses import dataclass

from graphpipe.api import simulate
from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.output import Output
from graphpipe.cluster import Cluster
from graphpipe.files.json_body import to_body
from graphpipe.files.json_document import write_document
from graphpipe.plans import Plan
from graphpipe.schedule import Schedule
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.simulator import predict
from graphpipe.simulator.step_loads import DRAWN_STEPS, draw_loads
from graphpipe.trace import Trace
from graphpipe.units import format_seconds, parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The result, with the names that `--json` prints."""

    ranks: int
    steps: int
    scale: float
    step_seconds_planned: float
    """Predicted for the plan's own cluster, not scaled."""
    step_seconds_predicted: float
    """Predicted with this machine's links, scaled."""
    step_seconds_measured: float
    """Median of the timed steps."""
    difference: float
    """Relative difference of measured to predicted: 0.05 is 5 % longer."""
    changes: tuple[str, ...]
    """What was reduced to fit this machine, in sentences."""


EXAMPLE = """\
graphpipe plan two-tower-small --cluster local:4 --batch 32 -o plan.json
graphpipe rehearse plan.json --steps 3"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers, "rehearse", "run a plan with real processes and messages, and emulated compute", EXAMPLE
    )
    parser.add_argument("plan", metavar="PLAN", help="a file written by `graphpipe plan -o`")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the trace of the step of median length")
    parser.add_argument("--summary", metavar="FILE", help="write the predicted and the measured step time")
    parser.add_argument(
        "--steps", type=int, default=5, metavar="N", help="steps to time, after one warm-up step (default: 5)"
    )
    parser.add_argument(
        "--scale", type=float, metavar="X", help="multiply all times by X (default: chosen for this machine)"
    )
    parser.add_argument(
        "--most-bytes", default="16 KiB", metavar="BYTES", help="truncate larger messages (default: 16 KiB)"
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="SECONDS", help="limit for the whole rehearsal (default: 300)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Rehearse the plan, show the result and save it."""
    from graphpipe.run.rehearse.rehearse import rehearse
    from graphpipe.run.rehearse.scaled_plan import Limits, changes, scaled_plan, smallest_feasible_scale

    output = Output(args.json)
    plan = Plan.load(args.plan)
    order, planned = build_schedule(plan), simulate(plan)
    limits = Limits(
        scale=smallest_feasible_scale(planned) if args.scale is None else args.scale,
        most_bytes=parse_bytes(args.most_bytes, "--most-bytes"),
    )
    scaled = scaled_plan(plan, limits, Cluster.preset("local:1").intra_node)
    predicted = simulate(scaled, order)
    output.show(f"rehearsing on {len(plan.used_devices)} local processes, {args.steps + 1} steps")
    steps = _drawn_steps(scaled, order, args.steps) or [predicted]
    measured = rehearse(scaled, order, steps, steps=args.steps, timeout_seconds=args.timeout)
    expected = _step_seconds(scaled, predicted)
    result = Rehearsal(
        ranks=len(plan.used_devices),
        steps=args.steps,
        scale=limits.scale,
        step_seconds_planned=_step_seconds(plan, planned),
        step_seconds_predicted=expected,
        step_seconds_measured=measured.step_seconds,
        difference=measured.step_seconds / expected - 1.0,
        changes=tuple(changes(plan, limits)),
    )
    if args.output:
        measured.save(args.output)
    if args.summary:
        write_document(args.summary, "rehearsal", result)
    output.show(*_lines(result))
    output.emit(to_body(result))
    return 0


def _drawn_steps(plan: Plan, order: Schedule, count: int) -> list[Trace]:
    # The samples are others than those that the prediction drew. Empty if all samples are alike.
    drawn = range(DRAWN_STEPS, DRAWN_STEPS + min(count, DRAWN_STEPS)) if plan.costs.loads else ()
    return [simulate(plan, order, loads=draw_loads(plan, step)) for step in drawn]


def _step_seconds(plan: Plan, predicted: Trace) -> float:
    return predict(plan).step_seconds if plan.costs.loads else predicted.step_seconds


def _lines(result: Rehearsal) -> list[str]:
    scale = f"{result.scale:.3g} times longer than planned" if result.scale != 1 else "as planned"
    return [
        f"step measured {format_seconds(result.step_seconds_measured)}, "
        f"predicted {format_seconds(result.step_seconds_predicted)}: {result.difference:+.1%}",
        f"every task slept {scale} (the plan's step: {format_seconds(result.step_seconds_planned)})",
        *result.changes,
    ]
