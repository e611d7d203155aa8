"""`graphpipe train`: the main job, on local processes that it starts itself, or as a rank of torchrun's."""

import argparse
import os
from typing import TYPE_CHECKING

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.output import Output
from graphpipe.documents import from_body, to_body
from graphpipe.errors import GraphPipeError
from graphpipe.plan import Plan

if TYPE_CHECKING:
    from graphpipe.run.train_config import TrainConfig

FAILED = 4


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "train", "profile, plan, predict and train, on local processes or under torchrun")
    parser.add_argument("config", metavar="CONFIG.toml", help="what to train, and how")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changed settings, such as train.steps=50")
    parser.add_argument("--plan", metavar="FILE", help="a plan for this model, instead of making one")
    parser.add_argument("--resume", metavar="RUN", help="the folder of a run, to train on from its last checkpoint")
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
    """Train."""
    from graphpipe.run.config_file import read_config
    from graphpipe.run.train_config import with_options

    config = with_options(read_config(args.config, args.overrides), faults=args.fault, elastic=args.elastic)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _run_as_rank(args, config)
    return _run_here(args, config)


def _run_here(args: argparse.Namespace, config: "TrainConfig") -> int:
    from graphpipe.cli.training import conclude, load, prepare
    from graphpipe.cli.training_elastic import supervise
    from graphpipe.run.elastic import WORK
    from graphpipe.run.launch import check_port, launch

    output = Output(args.json)
    check_port(config.run.port)
    directory, plan = prepare(config, load(config), args.plan, output, resume=args.resume)
    output.show(f"training on {len(plan.used_devices)} local processes, into {directory}")
    if config.run.elastic:
        plan = supervise(config, directory, plan, output, resume=bool(args.resume))
    else:
        arguments = [str(directory), *(["resume"] if args.resume else [])]
        launch(WORK, len(plan.used_devices), arguments=arguments, port=config.run.port)
    conclude(directory, plan, output)
    return 0


def _run_as_rank(args: argparse.Namespace, config: "TrainConfig") -> int:
    """Rank 0 prepares and tells the others, which wait; then all train."""
    from pathlib import Path

    from graphpipe.cli.training import conclude, load, prepare
    from graphpipe.cli.training_elastic import continued, prepare_met
    from graphpipe.run.train import train
    from graphpipe.run.world import join

    output = Output(args.json)
    task = load(config)
    world = join(None, config.run.timeout_seconds)
    with world.closing_on_error():
        try:
            directory, plan = None, None
            if config.run.elastic:
                directory, plan = prepare_met(config, task, args.plan, output, world)
            elif world.rank == 0:
                directory, plan = prepare(config, task, args.plan, output, ranks=world.size, resume=args.resume)
        except GraphPipeError:
            world.exchange(None)
            raise
        told = world.exchange({"directory": str(directory), "plan": to_body(plan)} if plan else None)[0]
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
