"""The input of a planner, from the arguments of the command line."""

import argparse
from dataclasses import replace

from graphpipe.api import estimate
from graphpipe.cli.model_argument import ModelArgument, read_model_argument
from graphpipe.cluster import Cluster
from graphpipe.costs import CostModel, CostTable, declare_loads
from graphpipe.costs.check_units import warn_of_units
from graphpipe.costs.sample_load import parse_loads
from graphpipe.errors import InvalidInput
from graphpipe.files.cache_folder import cache_folder
from graphpipe.planners.problem.partition import Problem


def read_problem(args: argparse.Namespace) -> tuple[Problem, ModelArgument]:
    """Return the planner's problem, and the model of its graph.

    Raises:
        InvalidInput: an argument cannot be used.
    """
    if args.batch < 1:
        raise InvalidInput(f"is {args.batch}, must be at least 1", where="--batch")
    loads = parse_loads(args.load or ())
    cluster = Cluster.resolve(args.cluster)
    costs = CostTable.load(args.costs) if args.costs else None
    model = read_model_argument(args.model, None if args.no_cache else cache_folder(), args.look_into, args.precision)
    graph = model.graph
    if costs:
        warn_of_units(CostModel(graph, costs, cluster), args.costs)
    costs = costs or estimate(graph, cluster)
    if loads:
        costs = replace(costs, loads=declare_loads(graph, loads))
    return Problem(graph=graph, costs=costs, cluster=cluster, batch_size=args.batch), model
