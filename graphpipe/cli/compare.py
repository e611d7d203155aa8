"""`graphpipe compare`: planners side by side, each in a process of its own so that a time limit holds."""

import argparse
import signal
from dataclasses import fields
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from graphpipe.api import plan
from graphpipe.cli.arguments import Subparsers, add_problem, add_verb
from graphpipe.cli.output import Output
from graphpipe.cli.problem import read_problem
from graphpipe.documents import to_body
from graphpipe.errors import GraphPipeError, Infeasible, InvalidInput
from graphpipe.plan.partition import Problem
from graphpipe.plan.registry import PLANNERS, planner
from graphpipe.report import Outcome, Summary, compare_table, summarise
from graphpipe.units import format_seconds

INFEASIBLE = 3


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "compare", "plan with several planners, and compare")
    add_problem(parser)
    parser.add_argument("--planners", default=",".join(PLANNERS), metavar="A,B", help="which (default: all)")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds for each (default 600)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan with each planner in turn, and show a row for each; 3 if none of them finds a plan."""
    output = Output(args.json)
    if not args.timeout > 0:
        raise InvalidInput(f"is {args.timeout}, must be positive", where="--timeout")
    names = [name.strip() for name in args.planners.split(",")]
    for name in names:
        planner(name)
    problem = read_problem(args)
    outcomes = [_outcome(problem, name, args) for name in names]
    output.show(compare_table(outcomes))
    output.show(*(f"{outcome.planner}: {outcome.reason}" for outcome in outcomes if outcome.reason))
    output.emit({"rows": [_row(outcome) for outcome in outcomes]})
    return INFEASIBLE if all(outcome.status == "infeasible" for outcome in outcomes) else 0


def _outcome(problem: Problem, name: str, args: argparse.Namespace) -> Outcome:
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    options = {
        "planner": name,
        "micro_batch": args.micro_batch,
        "mixed_micro_batches": args.mixed_micro_batches,
        "objective": args.objective,
        "schedule": args.schedule,
    }
    process = context.Process(target=_search, args=(theirs, problem, options), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()  # It has started: the clock runs for the search alone.
        if not ours.poll(args.timeout):
            reason = f"no plan within {format_seconds(args.timeout)}"
            return Outcome(planner=name, status="timeout", reason=reason)
        found = ours.recv()
    except EOFError:
        process.join()
        raise GraphPipeError(f"the process of planner '{name}' died with code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if isinstance(found, Exception):
        raise found
    return found


def _search(answer: Connection, problem: Problem, options: dict[str, Any]) -> None:
    """Send the outcome, or the error, of one planner."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent is interrupted too, and ends this process.
    name = options["planner"]
    answer.send("started")
    try:
        found = plan(problem.graph, problem.costs, problem.cluster, batch_size=problem.batch_size, **options)
        assert found.prediction is not None
        answer.send(Outcome(planner=name, status="ok", summary=summarise(found, found.prediction)))
    except Infeasible as error:
        answer.send(Outcome(planner=name, status="infeasible", reason=str(error)))
    except GraphPipeError as error:
        answer.send(error)
    except Exception as error:
        answer.send(GraphPipeError(f"planner '{name}' failed: {type(error).__name__}: {error}"))


def _row(outcome: Outcome) -> dict[str, Any]:
    found = (
        dict.fromkeys(field.name for field in fields(Summary)) if outcome.summary is None else to_body(outcome.summary)
    )
    return found | {"planner": outcome.planner, "status": outcome.status, "reason": outcome.reason or None}
