"""What a planner is given, from the command line's words."""

import argparse

from graphpipe.api import estimate
from graphpipe.cli.model_argument import Found, find
from graphpipe.cluster.presets import resolve
from graphpipe.costs import CostModel, CostTable
from graphpipe.costs.check_units import warn_of_units
from graphpipe.errors import InvalidInput
from graphpipe.planners.problem.partition import Problem


def read_problem(args: argparse.Namespace) -> tuple[Problem, Found]:
    """Return graph, costs, cluster and batch size; and the model of the graph.

    Raises:
        InvalidInput: any of them cannot be used.
    """
    if args.batch < 1:
        raise InvalidInput(f"is {args.batch}, must be at least 1", where="--batch")
    cluster = resolve(args.cluster)
    costs = CostTable.load(args.costs) if args.costs else None
    model = find(args.model)
    graph = model.graph
    if costs:
        warn_of_units(CostModel(graph, costs, cluster), args.costs)
    costs = costs or estimate(graph, cluster)
    return Problem(graph=graph, costs=costs, cluster=cluster, batch_size=args.batch), model
