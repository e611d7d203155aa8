"""Bubbles of zero-bubble schedules on the profiles that were published with them.

The seconds of forward, input gradient, weight gradient and message were **measured** by the authors of zero-bubble
pipeline parallelism on A100 GPUs, and the bubbles **computed** by their scheduler. Ours are simulated from the same
seconds. `bubble` is the share of the time in which a device has nothing to do. A forward keeps 34 h + 5 a s bytes per
token and layer, of which a weight gradient needs 32 h, as their memory model says. ZB-1p may hold as much as 1F1B at
its first stage, and ZB-2p twice as much. Both are searched: theirs by an integer programme and rules, ours by
`zb-auto`. ZB-H1 is `zb-h1`. ZB-H2 is written out here, because `zb-auto` finds a shorter schedule in the same memory.
"""

import csv
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.record import SHARED, save
from bench.tables import markdown
from graphpipe.cluster import Cluster, Device, DeviceType, Link
from graphpipe.costs import CostTable, Curve, OpCost
from graphpipe.graph import Edge, Graph, Op, Work
from graphpipe.plans import Plan, Stage, StageEdge
from graphpipe.schedule import Schedule
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace

DATA = SHARED / "zero-bubble" / "profiles.csv"
PUBLISHED = {
    "1.5B": {"1F1B": 0.2431, "ZB-H1": 0.1585, "ZB-H2": 0.1083, "ZB-1p": 0.1585, "ZB-2p": 0.0433},
    "6.2B": {"1F1B": 0.2347, "ZB-H1": 0.1323, "ZB-H2": 0.0698, "ZB-1p": 0.1323, "ZB-2p": 0.0029},
}
"""By model and method (Qi et al.: Zero bubble pipeline parallelism, ICLR 2024)."""
METHODS = {
    "1F1B": ("1f1b", 1),
    "ZB-H1": ("zb-h1", 1),
    "ZB-H2": ("", 2),
    "ZB-1p": ("zb-auto", 1),
    "ZB-2p": ("zb-auto", 2),
}
"""Our schedule, and the memory in units of what 1F1B holds at the first stage."""
TASKS = ("F", "B", "I", "W")
Profile = Mapping[str, str]


def main() -> None:
    """Run the benchmark, write JSON and table."""
    if not DATA.exists():
        print(f"skipped: no profiles at {DATA}")
        return
    rows: list[dict[str, Any]] = []
    for profile in read_profiles(DATA):
        for method, published in PUBLISHED[profile["model"]].items():
            found = round(bubble(profile, method), 4)
            rows.append({"model": profile["model"], "method": method, "published": published, "bubble": found})
    lines = [[row["model"], row["method"], f"{row['published']:.4f}", f"{row['bubble']:.4f}"] for row in rows]
    for line in lines:
        print(*line, sep="\t")
    title, _, caption = (__doc__ or "").partition("\n\n")
    markdown(
        "zero-bubble-profiles", title.rstrip("."), caption.strip(), ["model", "method", "published", "ours"], lines
    )
    print(f"saved {save('zero-bubble-profiles', rows)}")


def read_profiles(path: Path) -> list[Profile]:
    """Return the published profiles, in microseconds."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def bubble(profile: Profile, method: str) -> float:
    """Return the bubble of a method on a profile."""
    name, multiple = METHODS[method]
    plan = chain_plan(profile, name or "zb-h1", multiple)
    trace = simulate(plan, None if name else zb_h2(int(profile["p"]), int(profile["m"])))
    work = int(profile["m"]) * sum(float(profile[field]) for field in ("t_f_us", "t_b_us", "t_w_us"))
    return 1 - work * 1e-6 / longest_own_seconds(trace)


def longest_own_seconds(trace: Trace) -> float:
    """Return the longest time of a device from its first task to its last, which the published figures count."""
    own = [[s for s in trace.spans if s.device == device and s.kind in TASKS] for device in trace.used_devices]
    return max(max(s.end_seconds for s in spans) - min(s.start_seconds for s in spans) for spans in own)


def zb_h2(depth: int, count: int) -> Schedule:
    """Return the schedule ZB-H2 of a chain: stage i starts with 2 (depth - i) - 1 forwards, and delays 2 i halves.

    stage 0   F0 F1 F2 I0 W0 F3 I1 W1 ...      depth 2: the last stage has its first gradient when stage 0 wants it
    stage 1      F0 I0 F1 I1 F2 I2 W0 ...
    """
    lines = ["schedule zb-h2"]
    for stage in range(depth):
        forwards, weights = min(count, 2 * (depth - stage) - 1), 0
        tasks = [f"F{stage}.{n}" for n in range(forwards)]
        for n in range(count):
            tasks.append(f"I{stage}.{n}")
            if n - weights >= 2 * stage:
                tasks.append(f"W{stage}.{weights}")
                weights += 1
            if forwards < count:
                tasks.append(f"F{stage}.{forwards}")
                forwards += 1
        tasks += [f"W{stage}.{n}" for n in range(weights, count)]
        lines.append(f"{stage}: {' '.join(tasks)}")
    return Schedule.parse("\n".join(lines) + "\n")


def chain_plan(profile: Profile, schedule: str, multiple: int) -> Plan:
    """Return a chain of equal stages with the published seconds, one sample for a micro-batch."""
    depth, count = int(profile["p"]), int(profile["m"])
    names = [f"stage{n}" for n in range(depth)]
    graph = Graph(
        name=profile["model"],
        ops=tuple(Op(name=name, parameter_bytes=0.0, work=Work(saved_bytes_per_sample=1.0)) for name in names),
        edges=tuple(Edge(source=a, target=b, bytes_per_sample=1.0) for a, b in pairwise(names)),
    )
    hidden, scores = int(profile["hidden"]), 5 * int(profile["heads"]) * 1024
    costs = CostTable(
        graph_fingerprint=graph.fingerprint,
        rows=tuple(
            OpCost(
                op=name,
                device_type="gpu",
                forward=_seconds(profile["t_f_us"]),
                input_gradient=_seconds(profile["t_b_us"]),
                weight_gradient=_seconds(profile["t_w_us"]),
                source="imported",
            )
            for name in names
        ),
        kept_for_weight_gradient=32 * hidden / (34 * hidden + scores),
    )
    held = [depth - n if schedule == "1f1b" else multiple * depth for n in range(depth)]
    stages = [
        Stage(name=name, ops=(name,), devices=(n,), micro_batch=1, in_flight=min(count, held[n]))
        for n, name in enumerate(names)
    ]
    return Plan(
        graph=graph,
        cluster=_cluster(depth, float(profile["t_comm_us"]) * 1e-6),
        costs=costs,
        batch_size=count,
        stages=tuple(stages),
        edges=tuple(StageEdge(source=n, target=n + 1, bytes_per_sample=1.0) for n in range(depth - 1)),
        schedule=schedule,
    )


def _seconds(microseconds: str) -> Curve:
    return Curve(lines=((0.0, float(microseconds) * 1e-6),))


def _cluster(count: int, message_seconds: float) -> Cluster:
    link = Link(latency_seconds=message_seconds, bandwidth_bytes_per_second=1e18)
    kind = DeviceType(
        name="gpu",
        memory_bytes=1e18,
        peak_flops_per_second=1e12,
        memory_bytes_per_second=1e12,
        launch_seconds=0.0,
        half_peak_flops=0.0,
    )
    devices = tuple(Device(name=f"d{n}", type="gpu", node="n") for n in range(count))
    return Cluster(name="a100", device_types=(kind,), devices=devices, intra_node=link, inter_node=link)
