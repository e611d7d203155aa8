"""The input of a planner, from the arguments of the command line."""

import argparse

from graphpipe.cli.model_argument import ModelArgument, read_model_argument
from graphpipe.cluster import Cluster
from graphpipe.costs import CostModel, CostTable
from graphpipe.costs.analytic import estimate
from graphpipe.costs.check_units import warn_of_units
from graphpipe.files.cache_folder import cache_folder
from graphpipe.planners.problem.partition import Problem
from graphpipe.planning.problem import check_batch_size


def read_problem(args: argparse.Namespace, *, shares: bool = False) -> tuple[Problem, ModelArgument]:
    """Return the planner's problem, and the model of its graph.

    Args:
        args: of the command line.
        shares: whether devices may share a replica, so that the graph says how. They may also if `--tensor` is not 1,
            and where the costs of several devices were measured.

    Raises:
        InvalidInput: an argument cannot be used.
    """
    check_batch_size(args.batch, "--batch")
    cluster = Cluster.resolve(args.cluster)
    costs = CostTable.load(args.costs) if args.costs else None
    cache, fused = cache_folder() if args.cache else None, not cluster.on_processors
    shares = shares or getattr(args, "tensor", 1) != 1 or (costs is not None and any(row.shared for row in costs.rows))
    model = read_model_argument(
        args.model,
        cache,
        args.look_into,
        args.precision,
        fused_attention=fused,
        shares=shares,
        sequence=getattr(args, "sequence_parallel", False),
        measured=costs.graph_fingerprint if costs else "",
    )
    graph = model.graph
    if costs:
        warn_of_units(CostModel(graph, costs, cluster), args.costs)
    costs = costs or estimate(graph, cluster)
    return Problem(graph=graph, costs=costs, cluster=cluster, batch_size=args.batch), model
