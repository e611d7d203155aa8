"""Before and after a planner: its checked problem, and the plan verified and predicted."""

from dataclasses import replace

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable, Loads, declare_loads
from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph
from graphpipe.planners.problem.partition import Problem
from graphpipe.plans.plan import Plan
from graphpipe.plans.verify import verify
from graphpipe.simulator import predict

MOST_SAMPLES = 2**24
"""Of a mini-batch. A search takes longer with the number of divisors, and must end after a typing error, too."""


def check_batch_size(samples: int, where: str) -> None:
    """Check the number of samples of a mini-batch.

    Args:
        samples: of the mini-batch.
        where: the setting.

    Raises:
        InvalidInput: there are none, or too many.
    """
    if samples < 1:
        raise InvalidInput(f"is {samples}, must be at least 1", where=where)
    if samples > MOST_SAMPLES:
        raise InvalidInput(f"is {samples}, must be at most {MOST_SAMPLES:,} samples", where=where)


def make_problem(
    graph: Graph,
    costs: CostTable,
    cluster: Cluster,
    batch_size: int,
    loads: Loads | None,
    *,
    balance: bool = False,
) -> Problem:
    """Return the problem of a planner.

    Args:
        graph: of the model.
        costs: of the graph on the cluster's device types.
        cluster: devices and links.
        batch_size: samples of a mini-batch.
        loads: of samples, by name. None: every sample is the same work.
        balance: whether mini-batches are balanced by these loads.

    Raises:
        InvalidInput: the mini-batch is empty or too large, the costs are of another graph, or the loads of unknown
            operators.
    """
    check_batch_size(batch_size, "batch_size")
    if loads is not None:
        costs = replace(costs, loads=declare_loads(graph, loads, balanced=balance))
    costs.check_for(graph, {device.type for device in cluster.devices})
    return Problem(graph, costs, cluster, batch_size)


def with_sequence_parallel(graph: Graph, *, asked: bool) -> Graph:
    """Return the graph whose layouts divide the sequence, or do not, as a plan is asked for.

    Raises:
        InvalidInput: it is asked for, and no operator has a layout that does.
    """
    divides = any(op.shards is not None and op.shards.sequence is not None for op in graph.ops)
    if asked and not divides:
        raise InvalidInput(
            f"is true, but no layout of '{graph.name}' divides the sequence",
            where="sequence_parallel",
            remedy="Find layouts with gp.with_shards(graph, model, sequence_parallel=True), or leave it out.",
        )
    if not divides:
        return graph
    ops = (replace(op, shards=op.shards and op.shards.with_sequence(used=asked)) for op in graph.ops)
    return replace(graph, ops=tuple(ops))


def predicted(plan: Plan) -> Plan:
    """Return a plan with its prediction.

    Raises:
        InvalidInput: the plan breaks a constraint.
        Infeasible: a stage does not fit in memory.
    """
    verify(plan)
    # The prediction simulates the plan's schedule, which is verified when it is built.
    return replace(plan, prediction=predict(plan))
