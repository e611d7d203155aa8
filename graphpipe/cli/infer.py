"""`graphpipe infer`: answer the requests of a file, on local processes or as a rank that torchrun has started."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.model_argument import MODEL_HELP
from graphpipe.cli.output import Output
from graphpipe.cli.setting_options import add_settings
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import to_body
from graphpipe.files.json_document import read_json
from graphpipe.planners.registry import DEFAULT
from graphpipe.planning.settings import PlanSection
from graphpipe.plans import Plan
from graphpipe.report import summarise, summary_lines
from graphpipe.report.tables.plan_table import plan_table
from graphpipe.units import format_seconds

if TYPE_CHECKING:
    from graphpipe.inference.infer import InferenceResult
    from graphpipe.inference.job import InferenceJob
    from graphpipe.inference.prepare import PlanSource

FAILED = 4
_SHOWN = 10
"""Failed samples that are printed; the file of answers and `--json` have all of them."""

EXAMPLE = """\
row=$(seq -s, 0 31)
printf '{"tokens": [[%s]]}\\n' $row $row $row > requests.jsonl
graphpipe infer gpt-small --cluster local:2 --batch 8 --data requests.jsonl -o answers.jsonl"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "infer", "answer requests with a pipeline of stages that does not train", EXAMPLE)
    parser.add_argument("plan", metavar="PLAN|MODEL", help=f"a file of `graphpipe plan --inference`, or {MODEL_HELP}")
    parser.add_argument("--model", metavar="MODEL", help="the model of the plan file")
    parser.add_argument("--cluster", metavar="C", help="with a MODEL: a preset (local:4) or a TOML file")
    parser.add_argument("--batch", type=int, metavar="B", help="with a MODEL: samples that are computed together")
    parser.add_argument("--planner", metavar="P", help=f"with a MODEL: graphpipe or edgepipe (default {DEFAULT})")
    parser.add_argument("--costs", metavar="FILE", help="with a MODEL: costs written by `graphpipe profile`")
    parser.add_argument(
        "--objective",
        choices=("throughput", "latency"),
        default="throughput",
        help="of plans that are made here (default: throughput)",
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="DATA",
        help="requests: a file of tensors (.safetensors, .npz, .npy), JSON lines (.jsonl), or file.py:function",
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="answers, in order: .jsonl, .safetensors or .npz"
    )
    parser.add_argument(
        "--weights", metavar="PATH", help="a safetensors file, a checkpoint or a run's folder (default: the model's)"
    )
    parser.add_argument(
        "--request-samples", type=int, metavar="N", help="samples of a request cut from a file of tensors (default: B)"
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="SECONDS", help="limit for a silent rank (default: 300)"
    )
    parser.add_argument("--elastic", action="store_true", help="if a rank is lost, continue on the remaining devices")
    parser.add_argument("--resume", action="store_true", help="answer what an interrupted command has left")
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="FAULT",
        help="inject a fault, such as kill@rank1:step3, to test recovery; a step is a window of B samples",
    )
    add_settings(parser, PlanSection, only=("cache",))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer the requests, and show what failed and how fast it was."""
    job, source = _job(args)
    from graphpipe.inference.infer import infer
    from graphpipe.training.train import print_to_stderr
    from graphpipe.training.train_under_torchrun import NotPrepared

    output = Output(args.json)
    try:
        result = infer(
            job,
            source,
            elastic=args.elastic,
            resume=args.resume,
            tell=print_to_stderr,
            on_plan=lambda plan: _show_plan(output, plan),
        )
    except NotPrepared:  # Rank 0 prints the error.
        return FAILED
    except KeyboardInterrupt:
        if job.journal_path.exists():
            print_to_stderr(f"the answers so far are in {job.journal_path}: the same command with --resume continues")
        raise
    if result is not None:
        output.show(*_lines(result))
        output.emit(to_body(result))
    return 0


def _job(args: argparse.Namespace) -> "tuple[InferenceJob, PlanSource]":
    """Return the job and the source of its plan.

    Raises:
        InvalidInput: arguments are missing, or exclude each other.
    """
    is_plan = args.plan.endswith(".json")
    made = ("cluster", "batch", "planner", "costs")
    if is_plan:
        _check_plan(args.plan, args.model)
        for name in made:
            if getattr(args, name) is not None:
                raise InvalidInput("does not go with a plan file", where=f"--{name}", remedy="Leave it out.")
    else:
        if args.model:
            raise InvalidInput(f"'{args.plan}' is a model too", where="--model", remedy="Leave out one of them.")
        for name in ("cluster", "batch"):
            if getattr(args, name) is None:
                remedy = f"Give --{name}, or a file of `graphpipe plan --inference`."
                raise InvalidInput("is missing, and a model is given", where=f"--{name}", remedy=remedy)
    for name in ("batch", "request_samples"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise InvalidInput(f"is {value}, must be at least 1", where=f"--{name.replace('_', '-')}")
    if not 0 < args.timeout < float("inf"):
        raise InvalidInput(f"is {args.timeout}, must be positive", where="--timeout")
    from graphpipe.inference.job import InferenceJob
    from graphpipe.inference.prepare import PlanSource
    from graphpipe.run.faults.fault import parse_faults

    parse_faults(args.fault)
    job = InferenceJob(
        model=args.model or args.plan,
        data=args.data,
        output=args.output,
        folder=str(Path.cwd()),
        weights=args.weights,
        request_samples=args.request_samples,
        objective=args.objective,
        timeout_seconds=args.timeout,
        faults=tuple(args.fault),
    )
    source = PlanSource(
        file=args.plan if is_plan else None,
        cluster=args.cluster or "",
        batch_size=args.batch or 0,
        planner=args.planner or DEFAULT,
        costs=args.costs,
        cache=args.cache,
    )
    return job, source


def _check_plan(path: str, model: str | None) -> None:
    body = read_json(path)
    if isinstance(body, dict) and body.get("graphpipe") == "graph":
        raise InvalidInput("a graph file has no module behind it", where=path, remedy="Give a model or a plan file.")
    if model is None:
        remedy = "Name the model of the plan."
        raise InvalidInput("is missing, and a plan file is given", where="--model", remedy=remedy)


def _show_plan(output: Output, plan: Plan) -> None:
    if plan.prediction is not None:
        output.show(plan_table(plan, plan.prediction), *summary_lines(summarise(plan, plan.prediction)))


def _lines(result: "InferenceResult") -> list[str]:
    lines = [f"request {each.request}, sample {each.sample} failed: {each.reason}" for each in result.failed[:_SHOWN]]
    if len(result.failed) > _SHOWN:
        lines.append(f"and {len(result.failed) - _SHOWN} more samples failed")
    answered = result.samples - len(result.failed)
    rate, full = result.samples_per_second, f"{result.samples_per_second_predicted:,.1f} predicted"
    started = [] if result.start_seconds is None else [f"started in {format_seconds(result.start_seconds)}"]
    return [
        *lines,
        *started,
        f"{result.requests} requests, {answered} of {result.samples} samples answered in "
        f"{format_seconds(result.seconds)} after that: {rate:,.1f} samples/s (a full pipeline: {full})",
        f"written to {result.output}",
    ]
