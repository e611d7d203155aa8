"""The runtime against torch.distributed.pipelining, on a chain and on two branches, and against plain PyTorch.

**Measured**, on the machine named in the JSON file of the same name. Engines take turns in the same processes, one
step each, and every process has one thread. A step is everything from the mini-batch to the changed weights (AdamW).
Our runtime has its default options. It also looks for NaN in every output and gradient, and gives the loss to every
rank. torch.distributed.pipelining leaves this to the user. It runs as its documentation sets it up, and does not keep
outputs. Figures are medians over the steps. A step is as long as on its slowest rank. The ratio is the median of the
ratios of consecutive steps.

- **chain**: gpt-small, cut after the same layers, with the same micro-batches and schedule.
- **in a V**: the same on two ranks that host two stages each, under `dualpipe-v` and torch's DualPipeV.
- **two-branches**: layers that sleep (5 ms per sample forward, 10 backward), because there are more ranks than cores.
  Two branches of two layers, and a layer that joins them, run on five ranks. torch.distributed.pipelining runs the
  branches one after the other, because it supports only chains. `predicted` is the ratio of the simulated steps.
- **alone**: one stage on one rank against gradient accumulation over the same micro-batches, in processor time of the
  one thread. Our runtime takes 0.05 to 0.1 ms more per forward or backward, independent of their length. So the ratio
  is higher for short tasks. `unchecked` is the ratio when our runtime does not look for NaN.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import graphpipe as gp
from bench.record import save
from bench.running import naps
from bench.running.runtime_case import run_case
from bench.tables import markdown
from graphpipe.model.zoo.registry import zoo_model
from graphpipe.plans import Plan

CHAIN_BATCH, CHAIN_MICRO_BATCH = 64, 8
ALONE = (
    ("gpt-small", 8, 64),
    ("gpt-small", 32, 128),
    ("mmt-small", 32, 128),
    ("dlrm-small", 256, 1024),
    ("candle-uno-small", 256, 1024),
    ("two-tower-small", 64, 64),
)
"""Model, micro-batch, mini-batch; a contrastive loss takes the whole mini-batch."""
NAPS_BATCH, NAPS_MICRO_BATCH = 24, 4
SCHEDULES = ("gpipe", "1f1b")


def main() -> None:
    """Run the benchmark, write JSON and table."""
    rows: list[dict[str, Any]] = []
    for row in _rows():
        print(*_line(row), sep="\t", flush=True)
        rows.append(row)
    header = ["case", "model", "ranks", "schedule", "micro-batch", "ours ms", "other ms", "ratio", "unchecked"]
    header += ["predicted", "steps"]
    title, _, caption = (__doc__ or "").partition("\n\n")
    markdown("runtime", title.rstrip("."), caption.strip(), header, [_line(row) for row in rows])
    print(f"saved {save('runtime', rows)}")


def _rows() -> Iterator[dict[str, Any]]:
    yield from (chain(ranks, schedule) for ranks in (2, 4) for schedule in SCHEDULES)
    yield in_a_v()
    yield from (two_branches(schedule) for schedule in SCHEDULES)
    yield from (_alone(*case) for case in ALONE)


def _line(row: dict[str, Any]) -> list[object]:
    ours, other = row["seconds"]["ours"], row["seconds"][row["against"]]
    predicted = f"{row['predicted_ratio']:.3f}" if "predicted_ratio" in row else "-"
    unchecked = f"{row['unchecked_ratio']:.3f}" if "unchecked_ratio" in row else "-"
    shown = [
        f"{1e3 * ours:.1f}",
        f"{1e3 * other:.1f}",
        f"{row['paired_ratio']:.3f}",
        unchecked,
        predicted,
        row["steps"],
    ]
    return [row["case"], row["model"], row["ranks"], row["schedule"], row["micro_batch"], *shown]


def chain(ranks: int, schedule: str, *, warmup: int = 5, repeats: int = 100) -> dict[str, Any]:
    """Return the row of gpt on this many ranks, against torch.distributed.pipelining."""
    plan = chain_plan("gpt-small", ranks, schedule, CHAIN_BATCH, CHAIN_MICRO_BATCH)
    row = run_case("chain", plan, "gpt-small", ranks=ranks, against="theirs", warmup=warmup, repeats=repeats)
    return {"case": "chain"} | row


def in_a_v(*, warmup: int = 5, repeats: int = 100) -> dict[str, Any]:
    """Return the row of gpt in a V on two ranks, against torch's DualPipeV."""
    devices = (0, 1, 1, 0)
    plan = chain_plan("gpt-small", len(devices), "dualpipe-v", CHAIN_BATCH, CHAIN_MICRO_BATCH, devices=devices)
    row = run_case("in_a_v", plan, "gpt-small", ranks=2, against="theirs", warmup=warmup, repeats=repeats)
    return {"case": "in a V"} | row


def chain_plan(
    model: str, ranks: int, schedule: str, batch: int, micro_batch: int, *, devices: Sequence[int] | None = None
) -> Plan:
    """Return gpt cut into equal parts, one on each device or on those that are given."""
    zoo = zoo_model(model)
    graph, cluster = (
        gp.capture(zoo.module, zoo.example_inputs),
        gp.Cluster.preset(f"local:{max(devices) + 1 if devices else ranks}"),
    )
    layers = len({op.name.split(".")[1] for op in graph.ops if op.name.startswith("layers.")})
    each = layers // ranks
    stages = [
        gp.HandStage(
            ops=(
                *(f"layers.{layer}.*" for layer in range(rank * each, (rank + 1) * each)),
                *(["head.*"] if rank == ranks - 1 else []),
            ),
            devices=(devices[rank] if devices else rank,),
            micro_batch=micro_batch,
        )
        for rank in range(ranks)
    ]
    costs = gp.estimate(graph, cluster)
    return gp.hand_plan(graph, costs, cluster, batch_size=batch, stages=stages, schedule=schedule)


def two_branches(schedule: str, *, longer: int = 1, warmup: int = 2, repeats: int = 12) -> dict[str, Any]:
    """Return the row of two branches that sleep, so many times as long as usual, against the same as a chain."""
    graph = gp.capture(naps.two_branches(), naps.batch(2)[0])
    ours, other = (_naps_plan(each, schedule, longer) for each in (graph, naps.as_chain(graph)))
    row = run_case(
        "branches", ours, graph.name, ranks=len(naps.LAYERS), against="theirs", warmup=warmup, repeats=repeats
    )
    predicted = {"ours": gp.simulate(ours).step_seconds, "theirs": gp.simulate(other).step_seconds}
    ratio = predicted["ours"] / predicted["theirs"]
    return {"case": "two-branches"} | row | {"predicted_seconds": predicted, "predicted_ratio": ratio}


def _naps_plan(graph: gp.Graph, schedule: str, longer: int) -> Plan:
    cluster = naps.cluster()
    return gp.hand_plan(
        graph,
        naps.costs(graph, cluster),
        cluster,
        batch_size=longer * NAPS_BATCH,
        stages=[
            gp.HandStage(ops=(name,), devices=(device,), micro_batch=longer * NAPS_MICRO_BATCH, name=name)
            for device, name in enumerate(naps.LAYERS)
        ],
        schedule=schedule,
    )


def _alone(model: str, micro_batch: int, batch: int) -> dict[str, Any]:
    plan = alone_plan(model, micro_batch, batch)
    return {"case": "alone"} | run_case("alone", plan, model, ranks=1, against="plain", warmup=5, repeats=100)


def alone_plan(model: str, micro_batch: int, batch: int) -> Plan:
    """Return one stage on one device."""
    zoo = zoo_model(model)
    graph, cluster = gp.capture(zoo.module, zoo.example_inputs), gp.Cluster.preset("local:1")
    stages = [gp.HandStage(ops=("*",), devices=(0,), micro_batch=micro_batch)]
    return gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=batch, stages=stages)
