"""`graphpipe rehearse`: run one process per device with emulated compute, and compare with the simulator."""

import argparse
from typing import TYPE_CHECKING

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.output import Output
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import to_body
from graphpipe.files.json_document import write_document
from graphpipe.plans import Plan
from graphpipe.units import format_seconds, parse_bytes

if TYPE_CHECKING:
    from graphpipe.rehearsal import Rehearsal

EXAMPLE = """\
graphpipe plan two-tower-small --cluster local:4 --batch 32 -o plan.json
graphpipe rehearse plan.json --steps 3 -o trace.json
graphpipe report plan.json trace.json -o report.html"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers, "rehearse", "run a plan with real processes and messages, and emulated compute", EXAMPLE
    )
    parser.add_argument(
        "plans", nargs="+", metavar="PLAN", help="files written by `graphpipe plan -o`; several get one common scale"
    )
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
        "--timeout", type=float, default=300.0, metavar="SECONDS", help="limit for each rehearsal (default: 300)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Rehearse the plans one after the other, show the results and save them."""
    output = Output(args.json)
    plans = [Plan.load(path) for path in args.plans]
    if len(plans) > 1 and (args.output or args.summary):
        what = f"writes one file, but {len(plans)} plans are given"
        where = "--output" if args.output else "--summary"
        raise InvalidInput(what, where=where, remedy="Rehearse them one by one, each with --scale X.")
    from graphpipe.rehearsal import common_scale, rehearse_plan
    from graphpipe.run.rehearse.scaled_plan import Limits

    most_bytes = parse_bytes(args.most_bytes, "--most-bytes")
    limits = Limits(scale=common_scale(plans) if args.scale is None else args.scale, most_bytes=most_bytes)
    results: list[Rehearsal] = []
    for path, plan in zip(args.plans, plans, strict=True):
        which = f"{path}: " if len(plans) > 1 else ""
        output.show(f"{which}rehearsing on {len(plan.used_devices)} local processes, {args.steps + 1} steps")
        result, trace = rehearse_plan(plan, limits, steps=args.steps, timeout_seconds=args.timeout)
        results.append(result)
        if args.output:
            trace.save(args.output)
        if args.summary:
            write_document(args.summary, "rehearsal", result)
        output.show(*_lines(result))
    bodies = [to_body(result) for result in results]
    output.emit(bodies[0] if len(bodies) == 1 else {"rehearsals": bodies})
    return 0


def _lines(result: "Rehearsal") -> list[str]:
    scale = f"{result.scale:.3g} times longer than planned" if result.scale != 1 else "as planned"
    return [
        f"step measured {format_seconds(result.step_seconds_measured)}, "
        f"predicted {format_seconds(result.step_seconds_predicted)}: {result.difference:+.1%}",
        f"every task slept {scale} (the plan's step: {format_seconds(result.step_seconds_planned)})",
        *result.changes,
    ]
