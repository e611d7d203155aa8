"""`edgepipe`: EdgePipe's partitioner for inference on unequal devices, published as PipeEdge.

    operators   o1 o2 o3 | o4 o5 | o6 o7 o8 o9        cut so that the slowest stage or message is fastest
    devices        slow     slow       fast           one per stage; devices that do not help stay unused

References:
    Hu et al.: PipeEdge: pipeline parallelism for large-scale model inference on heterogeneous edge devices. DSD 2022.
"""

from graphpipe.costs import CostModel
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.planners.inference.chains import chain_plans
from graphpipe.planners.inference.intervals import IntervalCosts
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.planner import Planner
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.plan import Plan


def plan_edgepipe(problem: Problem, options: Options) -> Plan:
    """Return the chain of stages whose slowest stage or message takes the least time.

    The published recurrence is solved exactly for every micro-batch size, over the operators in the graph's order and
    over all counts of devices of each kind (`chain_program`). A stage fits if its weights, its buffers for three
    micro-batches on each side, and the values between its operators do. Among sizes, `Options.evaluate` chooses.

    Raises:
        Infeasible: nothing fits in memory.
        InvalidInput: the problem is of training.
    """
    if problem.trains:
        raise InvalidInput("plans only inference", where="planner 'edgepipe'", remedy="Plan for inference.")
    intervals = IntervalCosts.of(
        CostModel.of(problem.graph, problem.costs, problem.cluster, trains=False), problem.graph.order
    )
    plans = chain_plans(problem, options, intervals, planner="edgepipe", chain=True)
    fitting = [plan for plan in plans if memory_shortfall(plan) <= 0]
    if not fitting:
        raise Infeasible(
            f"no chain of stages of '{problem.graph.name}' over {len(problem.cluster.devices)} devices fits in memory",
            remedy="Use more devices, devices with more memory, or a smaller micro-batch.",
        )
    return min(fitting, key=options.evaluate)


EDGEPIPE = Planner(
    name="edgepipe",
    plan=plan_edgepipe,
    pipeline="chain",
    trains=False,
    infers=True,
    honours=frozenset({"micro_batch", "objective"}),
)
