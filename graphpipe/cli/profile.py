"""`graphpipe profile`: measure a model's operators on this machine, or the links between ranks."""

import argparse
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from graphpipe.cli.arguments import Subparsers, add_precision, add_verb
from graphpipe.cli.model_argument import MODEL_HELP, captured_model
from graphpipe.cli.output import Output
from graphpipe.cli.profile_links import run_links
from graphpipe.cli.setting_options import add_settings
from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.errors import InvalidInput
from graphpipe.files.cache_folder import cache_folder
from graphpipe.planning.settings import PlanSection
from graphpipe.units import format_seconds
from graphpipe.waiting import waiting

EXAMPLE = """\
graphpipe profile two-tower-small --cluster local:2 -o costs.json
graphpipe profile --links --cluster local:2 -o cluster.toml
graphpipe plan two-tower-small --cluster cluster.toml --batch 32 --costs costs.json"""

_STEADY = 0.95
"""The share of its frequency that a device keeps while it is measured."""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "profile", "measure a model's operators, or links, on this machine", EXAMPLE)
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODEL_HELP)
    parser.add_argument(
        "--links", action="store_true", help="measure the links between the cluster's ranks instead of a model"
    )
    parser.add_argument(
        "--cluster", default="local:4", metavar="C", help="the cluster on which it will run (default local:4)"
    )
    parser.add_argument(
        "--samples",
        default="1,2,4,8,16,32",
        metavar="N,...",
        help="numbers of samples to measure at, with commas in between (default 1,2,4,8,16,32)",
    )
    parser.add_argument(
        "--tensor",
        default="1",
        metavar="T,...",
        help="numbers of devices that share a replica, to measure what each of them takes (default 1)",
    )
    parser.add_argument(
        "--compile", action="store_true", help="measure layers compiled, as train.compile runs them (takes minutes)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the costs, or the cluster with measured links")
    add_settings(parser, PlanSection, only=("look_into", "cache"))
    add_precision(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure the operators, show a summary and save the costs."""
    output = Output(args.json)
    cluster = Cluster.resolve(args.cluster)
    if args.links == (args.model is not None):
        raise InvalidInput("takes either MODEL or --links", where="profile")
    if args.links:
        return run_links(cluster, args.output, output)
    samples, tensor = _sizes(args.samples, "--samples", "4,8"), _sizes(args.tensor, "--tensor", "1,2")
    with waiting(f"capturing {args.model}"):
        from graphpipe.profiler.profile import profile
        from graphpipe.profiler.profiled_device import device_frequency
        from graphpipe.training.task.user_function import find_model

        model, cache = find_model(args.model), cache_folder() if args.cache else None
        fused = not cluster.on_processors
        captured = captured_model(model, cache, args.look_into, args.precision, fused_attention=fused)
        if {*tensor} != {1}:
            from graphpipe.model.shards.with_shards import captured_with_shards

            captured = captured_with_shards(captured, model.module)
    start, before = time.perf_counter(), device_frequency(cluster)
    costs = profile(
        model.module,
        model.example_inputs,
        cluster,
        captured=captured,
        batch_sizes=samples,
        tensor=tensor,
        cache=cache,
        compile=args.compile,
    )
    seconds, after = time.perf_counter() - start, device_frequency(cluster)
    if args.output:
        costs.save(args.output)
    _show(output, costs, samples, seconds, (before, after))
    return 0


def _show(
    output: Output, costs: CostTable, samples: Sequence[int], seconds: float, hertz: tuple[float | None, float | None]
) -> None:
    from graphpipe.profiler.fitting.fit_quality import fit_quality

    operators, (before, after) = len({row.op for row in costs.rows}), hertz
    counts = Counter(each.ranks or 1 for row in costs.rows for each in row.shared)
    quality = fit_quality(costs, samples)
    output.show(
        f"{operators} operators measured in {format_seconds(seconds)}{_of_ranks(counts)}; "
        f"{format_seconds(costs.task_overhead_seconds)} of overhead per task"
    )
    if quality is not None:
        output.show(quality.sentence)
    if before is not None and after is not None:
        slower = "; it became slower, perhaps because it was hot: measure again" if after < _STEADY * before else ""
        output.show(f"the device ran at {before / 1e6:,.0f} MHz before and {after / 1e6:,.0f} MHz after{slower}")
    output.emit(
        {
            "operators": operators,
            "profile_seconds": seconds,
            "operators_by_tensor": {"1": operators} | {str(ranks): count for ranks, count in counts.items()},
            "largest_error": quality.error if quality else 0.0,
            "largest_error_operator": quality.op if quality else None,
            "task_overhead_seconds": costs.task_overhead_seconds,
            "hertz_before": before,
            "hertz_after": after,
            "graph_fingerprint": costs.graph_fingerprint,
        }
    )


def _of_ranks(counts: Mapping[int, int]) -> str:
    return "".join(f", {count} of them also as each of {ranks} devices shares them" for ranks, count in counts.items())


def _sizes(text: str, option: str, example: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        what = f"'{text}' is not a list of whole numbers"
        raise InvalidInput(what, where=option, remedy=f"Write them with commas in between: {example}.") from None
