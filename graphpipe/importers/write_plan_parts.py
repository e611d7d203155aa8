"""Write an imported plan with its parts, each as a file that other commands read."""

from pathlib import Path

from graphpipe.cluster import Cluster, Link
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
    write_text(cluster, cluster_toml(plan.cluster))
    plan.save(whole)
    return graph, costs, cluster, whole


def cluster_toml(cluster: Cluster) -> str:
    """Return a cluster whose devices are listed by node as the text of a cluster file."""
    nodes: dict[str, dict[str, int]] = {}
    for device in cluster.devices:
        held = nodes.setdefault(device.node, {})
        held[device.type] = held.get(device.type, 0) + 1
    lines = [f'name = "{_escaped(cluster.name)}"', f"overlap = {str(cluster.overlap).lower()}"]
    lines += [f"duplex = {str(cluster.duplex).lower()}"]
    for level in (cluster.every_level[0], cluster.every_level[-1]):
        lines += ["", f"[{level.name}]", *_link(level.link)]
    for kind in cluster.device_types:
        lines += [
            "",
            f"[device_types.{kind.name}]",
            f"memory = {kind.memory_bytes!r}",
            f"peak = {kind.peak_flops_per_second!r}",
            f"memory_bandwidth = {kind.memory_bytes_per_second!r}",
            f"launch = {kind.launch_seconds!r}",
            f"half_peak_flops = {kind.half_peak_flops!r}",
        ]
    for node, held in nodes.items():
        counts = ", ".join(f"{kind} = {count}" for kind, count in held.items())
        lines += ["", "[[nodes]]", f'name = "{_escaped(node)}"', f"devices = {{ {counts} }}"]
    for pair in cluster.pair_links:
        ends = [f'first = "{_escaped(pair.first)}"', f'second = "{_escaped(pair.second)}"']
        lines += ["", "[[pair_links]]", *ends, *_link(pair.link)]
    return "\n".join(lines) + "\n"


def _link(link: Link) -> list[str]:
    return [f"latency = {link.latency_seconds!r}", f"bandwidth = {link.bandwidth_bytes_per_second!r}"]


def _escaped(text: str) -> str:
    # TOML's basic strings have these escapes; control characters may be in the name of a file.
    kept = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in kept)
