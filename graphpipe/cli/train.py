"""`graphpipe train`: the main job, on local processes that it starts itself, or as a rank of torchrun's."""

import argparse
import os
from typing import TYPE_CHECKING, Any

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.output import Output
from graphpipe.errors import GraphPipeError, InvalidInput
from graphpipe.files.json_document import from_body, to_body
from graphpipe.plans import Plan
from graphpipe.report import config_table

if TYPE_CHECKING:
    from graphpipe.run.comm.world import World
    from graphpipe.training.config.settings import TrainConfig
    from graphpipe.training.prepare_elastic import Met
    from graphpipe.training.run_folder.run_lock import RunLock
    from graphpipe.training.task.task import Task

FAILED = 4
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
    parser.add_argument("--plan", metavar="FILE", help="a plan for this model, instead of making one")
    parser.add_argument("--resume", metavar="RUN", help="the folder of a run, to train on from its last checkpoint")
    parser.add_argument("--print-config", action="store_true", help="show every setting and its source, and end")
    parser.add_argument(
        "--torch-profiler", metavar="steps=N", help="record N steps of every rank with torch.profiler, after two others"
    )
    parser.add_argument("--elastic", action="store_true", help="go on with the devices that are left if a rank is lost")
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="FAULT",
        help="inject a fault, to see what comes of it: kill@rank2:step3:phase=send; may be given again",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train, or only show the configuration."""
    from graphpipe.training.config.from_toml import read_config
    from graphpipe.training.config.settings import with_options

    overrides = [*args.overrides, *_profiler_override(args.torch_profiler)]
    config = with_options(read_config(args.config, overrides), faults=args.fault, elastic=args.elastic)
    if args.print_config:
        return _print_config(args, config, overrides)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _run_as_rank(args, config)
    return _run_here(args, config)


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


def _run_here(args: argparse.Namespace, config: "TrainConfig") -> int:
    from graphpipe.launch.launcher import check_port, launch
    from graphpipe.training.elastic.supervisor import WORK
    from graphpipe.training.prepare import conclude, how_to_go_on, load, prepare
    from graphpipe.training.prepare_elastic import supervise
    from graphpipe.training.run_folder.run_lock import RunLock

    output = Output(args.json)
    check_port(config.run.port)
    with RunLock() as lock:
        directory, plan = prepare(config, load(config), args.plan, output, lock=lock, resume=args.resume)
        output.show(f"training on {len(plan.used_devices)} local processes, into {directory}")
        try:
            if config.run.elastic:
                plan = supervise(config, directory, plan, output, resume=bool(args.resume))
            else:
                arguments = [str(directory), *(["resume"] if args.resume else [])]
                launch(WORK, len(plan.used_devices), arguments=arguments, port=config.run.port)
        except KeyboardInterrupt:
            output.show(how_to_go_on(directory))
            raise
        conclude(directory, plan, output)
    return 0


def _run_as_rank(args: argparse.Namespace, config: "TrainConfig") -> int:
    """Rank 0 prepares and tells the others, which wait; then all train."""
    from pathlib import Path

    from graphpipe.run.comm.world import join
    from graphpipe.training.prepare import conclude, load
    from graphpipe.training.prepare_elastic import Met, continued
    from graphpipe.training.run_folder.run_lock import RunLock
    from graphpipe.training.train_rank import train

    output = Output(args.json)
    task = load(config)
    world = join(None, config.run.timeout_seconds)
    with world.closing_on_error(), RunLock() as lock:
        met = Met.of(config, world) if config.run.elastic else None
        told = _prepare_first(args, config, task, output, world, met, lock)
        if told is None:  # Rank 0 says why.
            world.close()
            return FAILED
        directory, plan = Path(told["directory"]), from_body(Plan, told["plan"], "the plan of rank 0")
        resume = continued(directory) if config.run.elastic else bool(args.resume)
        train(config, task, plan, directory, resume=resume)
        if world.rank == 0:
            conclude(directory, plan, output)
        world.leave()
    return 0


def _prepare_first(
    args: argparse.Namespace,
    config: "TrainConfig",
    task: "Task",
    output: Output,
    world: "World",
    met: "Met | None",
    lock: "RunLock",
) -> dict[str, Any] | None:
    # What rank 0 has prepared, on every rank: profiling may take longer than a silent rank is waited for.
    from graphpipe.run.comm.collective_calls import patiently
    from graphpipe.training.prepare import prepare
    from graphpipe.training.prepare_elastic import prepare_met

    problems: list[GraphPipeError] = []

    def work() -> dict[str, Any] | None:
        if world.rank:
            return None
        try:
            if met is not None:
                directory, plan = prepare_met(config, task, args.plan, output, met, lock)
            else:
                directory, plan = prepare(
                    config, task, args.plan, output, lock=lock, ranks=world.size, resume=args.resume
                )
        except GraphPipeError as error:
            problems.append(error)
            return None
        return {"directory": str(directory), "plan": to_body(plan)}

    told = patiently(world, work)[0]
    for problem in problems:
        raise problem
    return told
