"""`graphpipe tune`: run the most promising plans on this machine for a few steps each, and keep the fastest."""

import argparse
import re
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.model_argument import listed
from graphpipe.cli.output import Output
from graphpipe.cli.setting_options import add_settings
from graphpipe.cli.task_argument import add_task, check_no_overrides, configured_task, names_configuration
from graphpipe.cluster import Cluster
from graphpipe.errors import InvalidInput
from graphpipe.files.cache_folder import cache_folder
from graphpipe.planning.settings import PlanSection, PlanSettings
from graphpipe.plans import Plan
from graphpipe.report.tables.trials_table import TrialRow, trials_table
from graphpipe.simulator import predict
from graphpipe.torchrun import under_torchrun
from graphpipe.units import format_seconds
from graphpipe.waiting import waiting

if TYPE_CHECKING:
    from graphpipe.training.tune.tune import Trial, Tuned, TuneProblem

EXAMPLE = """\
graphpipe tune two-tower-small --cluster local:2 --batch 16 --budget 30s --candidates 2 -o plan.json
graphpipe simulate plan.json --timeline"""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "tune", "run the best plans for a few steps each, and keep the fastest", EXAMPLE)
    add_task(parser)
    parser.add_argument("--cluster", metavar="C", help="of a MODEL that is no configuration (default local:4)")
    parser.add_argument("--batch", type=int, metavar="B", help="samples per mini-batch of such a MODEL (default 16)")
    parser.add_argument("--costs", metavar="FILE", help="costs of such a MODEL (default: estimated costs)")
    parser.add_argument(
        "--budget", default="10m", metavar="T", help="begin no plan after this time: 90s, 10m or 1h (default 10m)"
    )
    parser.add_argument(
        "--candidates", type=int, default=8, metavar="K", help="how many plans to run at the most (default 8)"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the fastest plan, with the costs that were learned"
    )
    parser.add_argument("--save-costs", metavar="FILE", help="write the costs that were learned")
    add_settings(parser, PlanSection, only=("look_into", "cache"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Tune, show every plan, and save the fastest."""
    from graphpipe.training.train import print_to_stderr
    from graphpipe.training.tune.tune import tune

    output = Output(args.json)
    if under_torchrun():
        remedy = "Run it in one process, without torchrun: it starts ranks on this machine."
        raise InvalidInput("starts ranks itself", where="tune", remedy=remedy)
    if args.candidates < 1:
        raise InvalidInput(f"is {args.candidates}, must be at least 1", where="--candidates")
    budget = read_budget(args.budget)
    with NamedTemporaryFile(prefix="graphpipe-tune-", suffix=".json") as config:
        problem = _of_config(args, Path(config.name)) if names_configuration(args) else _of_model(args)
        _check_here(problem.cluster)
        tuned = tune(problem, count=args.candidates, budget_seconds=budget, tell=print_to_stderr)
    kept = kept_plan(tuned)
    if args.output:
        kept.save(args.output)
    if args.save_costs:
        tuned.learned.save(args.save_costs)
    output.show(trials_table([_row(trial) for trial in tuned.trials]), *_lines(args, tuned))
    output.emit({"trials": [_body(trial) for trial in tuned.trials], "seconds": tuned.seconds})
    return 0


def read_budget(text: str) -> float:
    """Return the seconds of a budget such as 90s, 10m or 1h.

    Raises:
        InvalidInput: it is no positive number with one of these units.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not seconds:
        raise InvalidInput(f"is '{text}'", where="--budget", remedy="Write 90s, 10m or 1h.")
    return seconds


def kept_plan(tuned: "Tuned") -> Plan:
    """Return the fastest plan, predicted by the costs that were learned if they are of its graph."""
    best = tuned.best.candidate.plan
    if best.costs.graph_fingerprint != tuned.learned.graph_fingerprint:
        return best
    best = replace(best, costs=tuned.learned, prediction=None)
    return replace(best, prediction=predict(best))


def _of_config(args: argparse.Namespace, path: Path) -> "TuneProblem":
    from graphpipe.training.make_plan import captured_with_costs
    from graphpipe.training.train import print_to_stderr
    from graphpipe.training.tune.tune import TuneProblem
    from graphpipe.training.tune.tuned_model import TunedModelName

    config, task = configured_task(
        args, excluded=("cluster", "batch", "costs", "look_into"), what="its own", remedy="Write key=value."
    )
    if config.plan.stages:
        remedy = "Leave plan.stages out, and other plans can be tried."
        raise InvalidInput("names the only plan", where="plan.stages", remedy=remedy)
    config.save(path)
    cluster = Cluster.resolve(config.cluster)
    captured, costs = captured_with_costs(config, task, cluster, print_to_stderr)
    return TuneProblem(
        subject=TunedModelName(config=str(path), batch_size=config.train.batch_size),
        captured=captured,
        costs=costs,
        cluster=cluster,
        settings=config.plan,
        port=config.run.port,
        timeout_seconds=config.run.timeout_seconds,
    )


def _of_model(args: argparse.Namespace) -> "TuneProblem":
    from graphpipe.costs import CostTable
    from graphpipe.costs.analytic import estimate
    from graphpipe.model.capture_cache.capture_cache import cached_capture
    from graphpipe.training.task.checked_model import find_checked_model
    from graphpipe.training.tune.tune import TuneProblem
    from graphpipe.training.tune.tuned_model import TunedModelName

    check_no_overrides(args, "tune", "Use --cluster and --batch.")
    cluster = Cluster.resolve(args.cluster or "local:4")
    with waiting(f"capturing {args.model}"):
        model = find_checked_model(args.model)
        captured = cached_capture(
            model.module,
            model.example_inputs,
            cache_folder() if args.cache else None,
            split=listed(args.look_into),
            graph=model.graph,
            fused_attention=not cluster.on_processors,
        )
    return TuneProblem(
        subject=TunedModelName(model=args.model, batch_size=16 if args.batch is None else args.batch),
        captured=captured,
        costs=CostTable.load(args.costs) if args.costs else estimate(captured.graph, cluster),
        cluster=cluster,
        settings=PlanSettings(),
    )


def _check_here(cluster: Cluster) -> None:
    from graphpipe.devices.registry import default_kind

    kind = default_kind()
    if not cluster.on_processors and kind.on_host:
        what = f"'{cluster.name}' has accelerators, and this machine has none"
        raise InvalidInput(what, where="tune", remedy="Tune where the ranks will run, or for local:4.")


def _row(trial: "Trial") -> TrialRow:
    return TrialRow(
        plan=trial.candidate.plan,
        asked=trial.candidate.asked,
        steps=trial.steps,
        step_seconds=trial.step_seconds,
        failed=bool(trial.failure),
    )


def _body(trial: "Trial") -> dict[str, object]:
    plan = trial.candidate.plan
    return {
        "asked": trial.candidate.asked,
        "schedule": plan.schedule,
        "stages": len(plan.stages),
        "predicted_seconds": trial.candidate.predicted_seconds,
        "measured_seconds": trial.step_seconds,
        "steps": trial.steps,
        "failure": trial.failure,
    }


def _lines(args: argparse.Namespace, tuned: "Tuned") -> list[str]:
    ran = [trial for trial in tuned.trials if trial.step_seconds is not None]
    first = min(ran, key=lambda trial: trial.candidate.predicted_seconds)
    assert first.step_seconds is not None
    assert tuned.best.step_seconds is not None
    lines = [
        f"{len(ran)} of {len(tuned.trials)} plans ran in {format_seconds(tuned.seconds)}; the fastest takes "
        f"{format_seconds(tuned.best.step_seconds)} a step, and the one that was predicted best "
        f"{format_seconds(first.step_seconds)}"
    ]
    lines += [
        f"failed: {trial.candidate.asked or 'as asked'}: {trial.failure}" for trial in tuned.trials if trial.failure
    ]
    if args.output and names_configuration(args):
        lines.append(f"graphpipe train {args.model} --plan {args.output} trains by it")
    return lines
