"""`graphpipe check`: train a few samples in plain PyTorch and as a plan cuts and divides them, and compare."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.model_argument import listed
from graphpipe.cli.output import Output
from graphpipe.cli.setting_options import add_settings
from graphpipe.cli.task_argument import add_task, check_no_overrides, configured_task, names_configuration
from graphpipe.cluster import Cluster
from graphpipe.errors import InvalidInput
from graphpipe.files.cache_folder import cache_folder
from graphpipe.files.json_body import to_body
from graphpipe.planning.settings import PlanSection
from graphpipe.waiting import waiting

if TYPE_CHECKING:
    from torch import nn

    from graphpipe.model.capture.capture import Captured
    from graphpipe.plans import Plan
    from graphpipe.run.initial_weights.weight_source import WeightSource

DIFFERS = 4
EXAMPLE = """\
graphpipe check mmt-small --cluster local:4 --batch 16 --micro-batch 4
graphpipe plan mmt-small --cluster local:2 --batch 16 -o plan.json
graphpipe check mmt-small --plan plan.json"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "check", "find out whether a plan trains a model as plain PyTorch does", EXAMPLE)
    add_task(parser)
    parser.add_argument("--plan", metavar="FILE", help="check this plan instead of making one")
    parser.add_argument(
        "--cluster", metavar="C", help="plan a MODEL that is no configuration for this cluster (default local:4)"
    )
    parser.add_argument("--batch", type=int, metavar="B", help="samples per mini-batch of that plan (default 16)")
    parser.add_argument("--micro-batch", type=int, metavar="N", help="micro-batch of that plan (default: search)")
    parser.add_argument("--schedule", metavar="S", help="schedule of that plan")
    add_settings(parser, PlanSection, only=("look_into", "cache"))
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    plan: "Plan"
    module: "nn.Module"
    loss_fn: Any
    inputs: Any
    targets: Any
    captured: "Captured"
    source: "WeightSource | None" = None
    seed: int = 0
    note: str = ""


def run(args: argparse.Namespace) -> int:
    """Check, and show what differs."""
    from graphpipe.equivalence.check import TooLarge, check, check_memory
    from graphpipe.run.initial_weights.filled_copy import filled_copy, lacks_data

    output = Output(args.json)
    it = _of_config(args, output) if names_configuration(args) else _of_model(args)
    module, note = it.module, it.note
    with waiting("checking the plan against plain PyTorch"):
        try:
            if lacks_data(module):
                check_memory(module)
                module = filled_copy(module, it.source, it.seed)
            result = check(it.plan, module, it.loss_fn, it.inputs, it.targets, captured=it.captured)
        except TooLarge as error:
            return _stages(it, error, output)
    output.show(str(result), *([f"note: {note}"] if note else []))
    output.emit(
        to_body(result)
        | {"equal": result.equal, "sentences": [each.sentence for each in result.differences], "where": result.where}
    )
    return 0 if result.equal else DIFFERS


def _stages(it: _Checked, error: InvalidInput, output: Output) -> int:
    # The model does not fit in memory: each stage that fits is checked alone.
    from graphpipe.equivalence.check_stages import check_stages

    found = check_stages(
        it.plan, it.module, it.loss_fn, it.inputs, it.targets, captured=it.captured, source=it.source, seed=it.seed
    )
    output.show(f"the whole model was not checked: {error.what}", *map(str, found))
    sentences = [str(each) for each in found]
    output.emit({"equal": all(each.equal for each in found), "whole": error.what, "stages": sentences})
    if all(each.skipped for each in found):
        raise error
    return DIFFERS if any(each.differences for each in found) else 0


def _of_config(args: argparse.Namespace, output: Output) -> _Checked:
    from graphpipe.training.make_plan import make_plan, use_plan
    from graphpipe.training.task.first_samples import first_samples
    from graphpipe.training.task.initial_weights import initial_weights

    config, task = configured_task(
        args,
        excluded=("cluster", "batch", "micro_batch", "schedule", "look_into"),
        what="its own plan",
        remedy="Write key=value, or --plan.",
    )
    if args.plan:
        plan, captured = use_plan(config, task, args.plan)
    else:
        plan, captured = make_plan(config, task, Cluster.resolve(config.cluster), output.show)
    size = config.train.batch_size
    inputs, targets = first_samples(task, size, size, config.train.seed)
    return _Checked(
        plan=plan,
        module=task.model,
        loss_fn=task.loss_fn,
        inputs=inputs,
        targets=targets,
        captured=captured,
        source=initial_weights(config, task),
        seed=config.train.seed,
    )


def _of_model(args: argparse.Namespace) -> _Checked:
    from graphpipe.costs.analytic import estimate
    from graphpipe.model.capture_cache.capture_cache import cached_capture, cached_capture_for
    from graphpipe.planning.plan import plan
    from graphpipe.plans import Plan
    from graphpipe.training.task.checked_model import find_checked_model

    check_no_overrides(args, "check", "Use --cluster, --batch and --schedule, or --plan.")
    made: dict[str, Any] = {"--cluster": args.cluster, "--batch": args.batch, "--schedule": args.schedule}
    made["--micro-batch"] = args.micro_batch
    if args.plan and (given := next((name for name, value in made.items() if value is not None), None)):
        raise InvalidInput("excludes --plan, which has its own", where=given)
    with waiting(f"capturing {args.model}"):
        model = find_checked_model(args.model)
        cache = cache_folder() if args.cache else None
        if args.plan:
            plan_to_check = Plan.load(args.plan)
            captured = cached_capture_for(model.module, model.example_inputs, plan_to_check.graph, cache)
        else:
            names = listed(args.look_into)
            captured = cached_capture(model.module, model.example_inputs, cache, split=names, graph=model.graph)
            cluster = Cluster.resolve(args.cluster or "local:4")
            costs = estimate(captured.graph, cluster)
            batch_size = 16 if args.batch is None else args.batch
            plan_to_check = plan(
                captured.graph,
                costs,
                cluster,
                batch_size=batch_size,
                micro_batch=args.micro_batch,
                schedule=args.schedule,
            )
    inputs, targets = model.samples(plan_to_check.batch_size)
    return _Checked(
        plan=plan_to_check,
        module=model.module,
        loss_fn=model.loss_fn,
        inputs=inputs,
        targets=targets,
        captured=captured,
        note=model.note,
    )
