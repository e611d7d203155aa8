"""Write an imported plan with its parts, each as a file that other commands read."""

from pathlib import Path

from graphpipe.cluster.cluster_text import cluster_text
from graphpipe.files.text_file import write_text
from graphpipe.plans import Plan

NAMES = ("graph.json", "costs.json", "cluster.toml", "plan.json")


def write_plan_parts(plan: Plan, folder: Path) -> tuple[Path, ...]:
    """Write graph, costs, cluster and plan into a folder, and return their paths in this order.

    Raises:
        InvalidInput: a file cannot be written.
    """
    graph, costs, cluster, whole = (folder / name for name in NAMES)
    plan.graph.save(graph)
    plan.costs.save(costs)
    write_text(cluster, cluster_text(plan.cluster))
    plan.save(whole)
    return graph, costs, cluster, whole
