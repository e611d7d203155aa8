"""`graphpipe demo`: a graph of stages against a chain, planned and rehearsed, then a real training."""

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from graphpipe.cli.arguments import Subparsers, add_problem, add_verb
from graphpipe.cli.example_files import DIGITS, FOLDER, write_files
from graphpipe.cli.output import Output
from graphpipe.cli.problem import read_problem
from graphpipe.cli.report_files import read_subject
from graphpipe.cli.setting_options import add_settings, read_settings
from graphpipe.cli.train import run_training
from graphpipe.planners.baselines.pipedream import PIPEDREAM
from graphpipe.planners.graphpipe import GRAPHPIPE
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.spp import SPP
from graphpipe.planning.plan import plan
from graphpipe.planning.settings import PlanSettings
from graphpipe.plans import Plan
from graphpipe.report.content.compared_plan import ComparedPlan
from graphpipe.report.content.subject import Subject
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace
from graphpipe.units import format_seconds
from graphpipe.waiting import waiting

PROBLEM = "mmt --cluster summit:2x4 --batch 32 --schedule 1f1b --stages-per-device 1"
"""Arguments of `graphpipe plan`. Every stage has devices of its own, as in the published planners."""
PLANNERS = {"graph": GRAPHPIPE.name, "chain": PIPEDREAM.name}
STRONGEST_CHAIN = SPP.name
"""Makes chains by the search that also makes the graph."""
STEPS = 3
EPOCHS = 5
"""The digits are recognised after four."""
TRAINING = "examples/digits.toml"
STAGES = "digits_stages.json"
"""Beside the configuration."""

UNDRAWN = "The demo draws pages where plotly is installed: pip install 'graphpipe-torch[report]'."
EXAMPLE = "graphpipe demo --no-train"


class Rehearsed(NamedTuple):
    """A plan and its steps."""

    plan: Plan
    predicted: Trace
    rehearsed: Trace


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "demo", "show a graph of stages against a chain, then train on real data", EXAMPLE)
    parser.add_argument("-o", "--output", default="runs", metavar="FOLDER", help="for all files (default: runs)")
    parser.add_argument("--no-train", action="store_true", help="end after the comparison")
    parser.add_argument(
        "--files", action="store_true", help=f"only write the files of the training ({TRAINING}) that are not there"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare, then train, and print where the two pages are."""
    output = Output(args.json)
    if args.files or not (args.no_train or Path(TRAINING).exists()):
        written = [str(path) for path in write_files(DIGITS, FOLDER)]
        output.show(f"written: {', '.join(written)}" if written else f"{TRAINING} and its files are there already")
        if args.files:
            output.emit({"written": written})
            return 0
    asked = _asked()
    problem, _ = read_problem(asked)
    devices = f"{len(problem.cluster.devices)} emulated {problem.cluster.device_types[0].name.upper()}"
    output.show(f"graph against chain, {devices}: compute sleeps, processes and messages are real")
    result = _compare(output, problem, asked, Path(args.output))
    if not args.no_train:
        result |= _train(output, Path(args.output))
    output.emit(result)
    return 0


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_problem(parser)
    add_settings(parser, PlanSettings)
    return parser.parse_args(PROBLEM.split())


def _compare(output: Output, problem: Problem, asked: argparse.Namespace, folder: Path) -> dict[str, object]:
    with waiting("planning"):
        plans = {name: _plan(problem, asked, planner) for name, planner in PLANNERS.items()}
        strongest = simulate(_plan(problem, asked, STRONGEST_CHAIN)).step_seconds
    for name, planned in plans.items():
        stages = f"{len(planned.stages)} stages, depth {planned.depth}"
        output.show(f"{name:9}  {stages}, planned by {planned.planner} in {format_seconds(planned.search_seconds)}")
    scale, rehearsed = _rehearse(plans)
    graph, chain = rehearsed["graph"], rehearsed["chain"]
    ratios = (
        chain.predicted.step_seconds / graph.predicted.step_seconds,
        chain.rehearsed.step_seconds / graph.rehearsed.step_seconds,
    )
    page = folder / "graph-against-chain.html"
    if _draws():
        _write_page(f"{problem.graph.name} on {problem.cluster.name}: graph against chain", rehearsed, page)
    output.show(
        f"predicted  {_steps(graph.predicted, chain.predicted)}",
        f"rehearsed  {_steps(graph.rehearsed, chain.rehearsed)} (run {scale:.3g} times slower, and divided by it)",
        f"ratio      {ratios[0]:.2f}x predicted, {ratios[1]:.2f}x rehearsed",
        f"Both run {asked.schedule.upper()}. The chain is that of PipeDream's published planner. The best chain of our "
        f"own search is predicted at {format_seconds(strongest)}: {strongest / graph.predicted.step_seconds:.2f}x.",
        f"both plans and their steps, side by side: {page}" if _draws() else UNDRAWN,
    )
    figures: dict[str, object] = {"ratio_predicted": ratios[0], "ratio_rehearsed": ratios[1], "scale": scale}
    return figures | ({"comparison": str(page)} if _draws() else {})


def _draws() -> bool:
    return find_spec("plotly") is not None


def _plan(problem: Problem, asked: argparse.Namespace, planner: str) -> Plan:
    settings = read_settings(asked, PlanSettings, planner=planner)
    return plan(problem.graph, problem.costs, problem.cluster, settings, batch_size=problem.batch_size)


def _rehearse(plans: dict[str, Plan]) -> tuple[float, dict[str, Rehearsed]]:
    with waiting("loading PyTorch"):
        from graphpipe.rehearsal import common_scale, rehearse_plan
        from graphpipe.run.rehearse.scaled_plan import Limits
    limits = Limits(scale=common_scale(list(plans.values())))
    return limits.scale, {
        name: Rehearsed(each, simulate(each), rehearse_plan(each, limits, steps=STEPS)[1])
        for name, each in plans.items()
    }


def _steps(graph: Trace, chain: Trace) -> str:
    return f"graph {format_seconds(graph.step_seconds)}, chain {format_seconds(chain.step_seconds)} a step"


def _write_page(title: str, rehearsed: dict[str, Rehearsed], path: Path) -> None:
    with waiting("drawing both plans"):
        from graphpipe.report.page.comparison_page import write_comparison

        compared = [
            ComparedPlan(
                name=name,
                subject=Subject(title=name, plan=each.plan, predicted=each.predicted, measured=each.rehearsed),
            )
            for name, each in rehearsed.items()
        ]
        write_comparison(title, compared, path)


def _train(output: Output, folder: Path) -> dict[str, object]:
    output.show(
        "",
        f"training on real scans of digits, on local processes, {EPOCHS} epochs. The stages are given in "
        f"{Path(TRAINING).parent / STAGES}: two towers at the same time. On few shared cores the planner itself would "
        "choose data parallelism.",
    )
    from graphpipe.training.config.from_toml import read_config

    overrides = [f"plan.stages={STAGES}", f"train.epochs={EPOCHS}", f"run.directory={folder}"]
    finished = run_training(output, read_config(TRAINING, overrides))
    page = finished.folder.path / "report.html"
    if not _draws():
        return {"accuracy": finished.result.accuracy}
    with waiting("drawing the report"):
        from graphpipe.report.page.report_page import write_html

        write_html(read_subject(str(finished.folder)), page)
    output.show(f"the report of the training: {page}")
    return {"accuracy": finished.result.accuracy, "report": str(page)}
