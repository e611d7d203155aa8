"""`graphpipe train`: train on local processes, or as a rank that torchrun has started."""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.dry_run_lines import dry_run_lines
from graphpipe.cli.output import Output
from graphpipe.cli.report_files import prediction_beside
from graphpipe.cli.setting_options import add_settings
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import to_body
from graphpipe.files.lasting_output import lasting_output
from graphpipe.planning.settings import PlanSection
from graphpipe.plans import Plan
from graphpipe.report import measured_table, summarise, summary_lines
from graphpipe.report.tables.config_table import config_table
from graphpipe.report.tables.plan_table import plan_table
from graphpipe.torchrun import under_torchrun
from graphpipe.trace import Trace
from graphpipe.trace.compare import compare
from graphpipe.units import format_seconds

if TYPE_CHECKING:
    from graphpipe.training.config.settings import TrainConfig
    from graphpipe.training.run_folder.finished_run import FinishedRun

INFEASIBLE, FAILED = 3, 4
_OPTIONS = {"train.faults": "--fault", "run.elastic": "--elastic"}
"""Settings that have an option of their own."""

EXAMPLE = """\
# in a clone of the repository
graphpipe train examples/digits.toml cluster=local:2 train.steps=4 train.checkpoint_every=2 plan.costs=estimate"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers, "train", "profile, plan, predict and train, on local processes or under torchrun", EXAMPLE
    )
    parser.add_argument("config", metavar="CONFIG.toml", help="what to train, and how")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changed settings, such as train.steps=50")
    parser.add_argument("--plan", metavar="FILE", help="use this plan instead of making one")
    parser.add_argument("--resume", metavar="RUN", help="continue the run in this folder from its last checkpoint")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check task, data, plan, memory and disk, say what would happen, and exit",
    )
    parser.add_argument("--print-config", action="store_true", help="show every setting and its source, and exit")
    parser.add_argument(
        "--torch-profiler", metavar="steps=N", help="record N steps of every rank with torch.profiler, after two others"
    )
    add_settings(parser, PlanSection, only=("cache",))
    parser.add_argument(
        "--no-check", action="store_true", help="train without checking the plan against plain PyTorch first"
    )
    parser.add_argument("--elastic", action="store_true", help="if a rank is lost, continue on the remaining devices")
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="FAULT",
        help="inject a fault, such as kill@rank2:step3:phase=send, to test recovery; can be repeated",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train, or only show the configuration."""
    from graphpipe.training.config.from_toml import read_config
    from graphpipe.training.config.settings import with_options

    switches = [*["plan.cache=false"] * (not args.cache), *["train.check=false"] * args.no_check]
    overrides = [*args.overrides, *_profiler_override(args.torch_profiler), *switches]
    config = with_options(read_config(args.config, overrides), faults=args.fault, elastic=args.elastic)
    if args.print_config:
        return _print_config(args, config, overrides)
    if args.dry_run:
        return _dry_run(args, config)
    with lasting_output():
        return _train(args, config)


def _profiler_override(text: str | None) -> list[str]:
    # The ranks read it from the configuration.
    if text is None:
        return []
    key, _, number = text.partition("=")
    if key != "steps" or not number.isdecimal() or int(number) < 1:
        raise InvalidInput(f"is '{text}'", where="--torch-profiler", remedy="Write steps=3, or another number.")
    return [f"run.profile_steps={int(number)}"]


def _print_config(args: argparse.Namespace, config: "TrainConfig", overrides: list[str]) -> int:
    from graphpipe.training.config.sources import leaves, value_sources

    output = Output(args.json)
    sources = value_sources(config, args.config, overrides)
    sources |= {key: option for key, option in _OPTIONS.items() if getattr(args, option.removeprefix("--"))}
    body = to_body(config)
    output.show(config_table({".".join(key): value for key, value in leaves(body)}, sources))
    output.emit({"config": body, "sources": sources})
    return 0


def _dry_run(args: argparse.Namespace, config: "TrainConfig") -> int:
    from graphpipe.training.dry_run import dry_run
    from graphpipe.training.train import print_to_stderr

    if args.resume:
        raise InvalidInput("does not go with --resume", where="--dry-run", remedy="Leave one of them out.")
    if under_torchrun():
        remedy = "Run it in one process, without torchrun."
        raise InvalidInput("plans once, and several ranks are running", where="--dry-run", remedy=remedy)
    output = Output(args.json)
    found = dry_run(config, plan=args.plan, tell=print_to_stderr)
    _show_plan(output, found.plan)
    output.show(*dry_run_lines(found))
    output.emit({key: value for key, value in to_body(found).items() if key != "plan"})
    return INFEASIBLE if found.problems else 0


def _train(args: argparse.Namespace, config: "TrainConfig") -> int:
    from graphpipe.training.train_under_torchrun import NotPrepared

    output = Output(args.json)
    try:
        finished = run_training(output, config, plan=args.plan, resume=args.resume)
    except NotPrepared:  # Rank 0 prints the error.
        return FAILED
    if finished.rank == 0:
        output.emit(to_body(finished.result) | {"directory": str(finished.folder)})
    return 0


def run_training(
    output: Output, config: "TrainConfig", *, plan: str | None = None, resume: str | None = None
) -> "FinishedRun":
    """Train, and show the plan before and the result after.

    Raises: as `graphpipe.train`.
    """
    from graphpipe.training.train import train

    finished = train(config, plan=plan, resume=resume, tell=output.show, on_plan=partial(_show_plan, output))
    if finished.rank == 0:
        _show_result(output, finished, apart=bool(config.train.gradients_apart))
    return finished


def _show_plan(output: Output, plan: Plan) -> None:
    assert plan.prediction is not None
    output.show(plan_table(plan, plan.prediction), *summary_lines(summarise(plan, plan.prediction)))


def _show_result(output: Output, finished: "FinishedRun", *, apart: bool) -> None:
    folder, result = finished.folder, finished.result
    if folder.measured_trace.exists():
        measured = Trace.load(folder.measured_trace)
        predicted = prediction_beside(finished.plan, Trace.load(folder.predicted_trace), measured)
        difference = compare(predicted, measured)
        output.show(measured_table(difference, [stage.name for stage in finished.plan.stages]))
    else:
        why = "gradients were computed apart from the stages of the plan" if apart else "no step was left to do"
        output.show(f"{why}, so no measured step is compared with the prediction")
    accuracy = "" if result.accuracy is None else f", held-out accuracy {result.accuracy:.1%}"
    held_out = "" if result.loss_held_out is None else f", held-out loss {result.loss_held_out:.4f}"
    predicted = "" if result.step_seconds_predicted is None else format_seconds(result.step_seconds_predicted)
    files = sorted({path.name for path in folder.path.iterdir()} - {folder.lock.name})
    output.show(
        f"{result.steps} steps in {format_seconds(result.train_seconds)}: loss {result.loss_first:.4f} -> "
        f"{result.loss_last:.4f}{held_out}{accuracy}",
        f"step: predicted {predicted}, measured {format_seconds(result.step_seconds_measured)} "
        f"({result.samples_per_second:,.1f} samples/s)",
        f"written to {folder}: {', '.join(files)}",
        *_learned_lines(finished),
    )


def _learned_lines(finished: "FinishedRun") -> list[str]:
    from graphpipe.profiler.learning.learned import largest_difference
    from graphpipe.training.run_folder.finished_run import LEAST_STEPS

    learned = finished.learned
    if learned is None or (worst := largest_difference(learned.passes)) is None:
        return []
    besides = f"{LEAST_STEPS} steps or more would tell what a step takes besides tasks, messages and updates"
    if learned.left_of_steps:
        overhead = format_seconds(learned.costs.step_overhead_seconds)
        besides = f"a step took {overhead} besides tasks, messages and updates"
    return [
        f"learned: the {worst.what} of {worst.stage} took {worst.factor:.2f}x what was predicted; {besides}; "
        f"`plan.costs={finished.folder}` predicts the next run by what this one measured"
    ]
