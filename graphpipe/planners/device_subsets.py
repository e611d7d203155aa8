"""Plans on a part of a cluster: a node, a site, the devices of a type, and unions of these.

Where links between nodes are slow, or some devices are, a plan on the rest can be faster than one on all of them:

    two nodes of four devices, 1 Gb/s between them     subsets: one node
    8 fast devices at one site, 8 slow at another      subsets: each site, which is each type too
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import inf

from graphpipe.cluster import Cluster
from graphpipe.cluster.levels import device_groups
from graphpipe.costs import CostModel
from graphpipe.planners.cluster_parts import Positions, fastest_on_parts, groups_at, messages_are_short
from graphpipe.planners.problem.limits import FAR, FEW, FEWER, LARGE
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.plans.plan import Plan


def with_device_subsets(
    problem: Problem, plan: Plan, options: Options, find: Callable[[Problem, Options], Plan]
) -> Plan:
    """Return the plan, or a faster one that leaves a part of the cluster unused.

    Leaving out devices helps where messages take time, or where some devices are slower than others. So of equal
    devices that are all in use, parts are searched only if the plan would be faster by `GAIN` with links that take no
    time, or if they have far more time than their work takes: a plan may avoid messages because they are slow. A number
    of equal devices that is no power of two in equal nodes is hard to fill, so all but the last, the last two and the
    last three are tried too.

    A subset is searched only if its devices could do the work of a step in less time than the plan, without messages
    and without waiting. Those that could do it in the least time come first, because later ones must then be faster.

    Args:
        problem: graph, costs, cluster and batch.
        plan: the best plan for all devices.
        options: the caller's.
        find: the search.
    """
    count, most = len(problem.cluster.devices), LARGE // len(problem.graph.ops)
    one_type = len(problem.cluster.device_types) == 1
    subsets = device_subsets(problem.cluster)
    if one_type and len(plan.used_devices) == count and messages_are_short(plan, options):
        seconds = options.ranked(plan, inf)
        subsets = [subset for subset in subsets if FAR * _least_seconds(problem, subset) < seconds]
    if one_type and not _is_regular(problem.cluster) and count <= most:
        subsets = [*subsets, *(tuple(range(count - left)) for left in range(1, min(FEWER, count - 1) + 1))]
    parts = sorted({(_least_seconds(problem, subset), subset) for subset in subsets if len(subset) <= most})
    return fastest_on_parts(problem, plan, options, find, parts) if parts else plan


def _is_regular(cluster: Cluster) -> bool:
    """Return whether the devices are a power of two in equal nodes."""
    nodes = Counter(device.node for device in cluster.devices)
    return len(cluster.devices).bit_count() == 1 and len({*nodes.values()}) == 1


def device_subsets(cluster: Cluster) -> list[Positions]:
    """Return parts of a cluster that a plan may have to itself. Of equal ones, only the first.

    They are each group of each level of links (nodes, then what lies between, such as sites), the devices of each type,
    and unions that begin with the strongest group and add the next: of all groups of a level, and of those inside one
    group of the next level, such as four of a site's five nodes.
    """
    everything = tuple(range(len(cluster.devices)))
    types = [device.type for device in cluster.devices]
    by_type = [tuple(at for at in everything if types[at] == name) for name in dict.fromkeys(types)]
    subsets: dict[object, Positions] = {}
    divisions, finer = [by_type], list[Positions]()
    for level in cluster.every_level:
        members = groups_at(cluster, level)
        inside = [[part for part in finer if part[0] in group] for group in members]
        divisions += [members, *(parts for parts in inside if len(parts) > 1)]
        finer = members
    for members in divisions:
        for subset in [*members, *_unions(cluster, members)]:
            subsets.setdefault(_shape(cluster, subset), subset)
    return [subset for subset in subsets.values() if len(subset) < len(everything)]


def _unions(cluster: Cluster, groups: Sequence[Positions]) -> Iterator[Positions]:
    # The strongest groups together: two, three and so on, or powers of two where there are many or all are equal.
    def strength(group: Positions) -> float:
        return sum(cluster.type_of(device).peak_flops_per_second for device in group)

    ordered = sorted(groups, key=strength, reverse=True)
    equal = len({strength(group) for group in groups}) == 1
    powers = [2**number for number in range((len(ordered) - 1).bit_length())]
    counts = powers if equal or len(ordered) > FEW else range(1, len(ordered))
    for count in counts:
        yield tuple(sorted(device for group in ordered[:count] for device in group))


def _shape(cluster: Cluster, subset: Positions) -> object:
    # Equal for subsets between whose devices links and types are the same, unless single pairs have links of their own.
    if cluster.pair_links:
        return subset
    groups: list[object] = []
    for level in cluster.every_level:
        groups_of = device_groups([device.node for device in cluster.devices], level)
        types = {groups_of[at]: list[str]() for at in subset}
        for at in subset:
            types[groups_of[at]].append(cluster.devices[at].type)
        groups.append(tuple(sorted(Counter(tuple(sorted(names)) for names in types.values()).items())))
    return tuple(groups)


def _least_seconds(problem: Problem, subset: Positions) -> float:
    # All devices compute all the time, each the share of the mini-batch that its speed allows.
    model = CostModel.of(problem.graph, problem.costs, problem.cluster, trains=problem.trains)
    counts = Counter(problem.cluster.devices[device].type for device in subset)
    rates = 0.0
    for kind, count in counts.items():
        seconds = sum(float(passes.sum()) for passes in model.seconds(kind, problem.batch_size))
        rates += count / seconds if seconds else float("inf")
    return 1.0 / rates
