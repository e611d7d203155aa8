"""Inference on 16 devices, with the profiles that PipeEdge has published (Hu et al., PipeEdge, DSD 2022).

**Simulated**: the planner `edgepipe`, micro-batches of 8 samples, a full pipeline, links of 1 Gb/s unless a row says
otherwise. PipeEdge's figures are measured on its own devices, where messages and waiting take more time than the
profiles say. No profile of ViT-Huge is published: it is derived from ViT-Large's by the multiplications of each layer.

"over one" compares with one device that has the memory for all layers, and "over four" with the plan for four devices
of the kind. PipeEdge does not say for which model its 3.93 is. "over PipeDream" compares with a partition that takes
all devices for alike, as PipeDream's programme does: it sees the first type and links of 1 Gb/s. PipeEdge's unequal
devices are not in its profiles. Ours are 8 of each type, and the same with slower links at half of them.
Reads ../shared/data/pipeedge beside the checkout.
"""

from pathlib import Path
from typing import Any

import graphpipe as gp
from bench.published.pipeedge_profiles import DATA, HUGE, LARGE, SLOW, derived_profiles
from bench.record import save
from bench.tables import markdown
from graphpipe.importers.read_pipeedge import PipeEdgeProfile, read_pipeedge
from graphpipe.plans.estimates import period_seconds

DEVICES, MICRO = 16, 8
BASE, MINNOW, RCC = "google/vit-base-patch16-224", "Minnowboard-E3845", "RCC-VE-C2000"
EQUAL = [(model, kind) for model in (BASE, LARGE, HUGE) for kind in (MINNOW, RCC)]
UNEQUAL = {MINNOW: 4, RCC: 4, f"{MINNOW}{SLOW}": 4, f"{RCC}{SLOW}": 4}
MEGABITS = (1000.0, 100.0, 10.0)
"""Of the slower links."""
PUBLISHED = {(LARGE, MINNOW): 10.59, (HUGE, MINNOW): 11.88}
"""Speedups over one device, by model and device."""


def planned(profile: PipeEdgeProfile) -> gp.Plan:
    """Return the plan of `edgepipe` for a full pipeline."""
    return gp.plan(
        profile.graph,
        profile.costs,
        profile.cluster,
        batch_size=MICRO,
        micro_batch=MICRO,
        planner="edgepipe",
        inference=True,
    )


def over_one(folder: Path, model: str, kind: str) -> dict[str, Any]:
    """Return the speedup of 16 devices of one kind over one that has the memory for all layers."""
    profile = read_pipeedge(folder, model=model, hosts={kind: DEVICES})
    plan = planned(profile)
    alone = sum(row.forward(MICRO) for row in profile.costs.rows)
    return {
        "model": model,
        "devices": f"{DEVICES} {kind}",
        "stages": len(plan.stages),
        "against": "one",
        "baseline_seconds": alone,
        "period_seconds": period_seconds(plan),
        "speedup": alone / period_seconds(plan),
        "published": PUBLISHED.get((model, kind)),
    }


def over_four(folder: Path, model: str, kind: str) -> dict[str, Any]:
    """Return the speedup of 16 devices of one kind over four of them."""
    plan, few = (planned(read_pipeedge(folder, model=model, hosts={kind: count})) for count in (DEVICES, 4))
    return {
        "model": model,
        "devices": f"{DEVICES} {kind}",
        "stages": len(plan.stages),
        "against": "four",
        "baseline_seconds": period_seconds(few),
        "period_seconds": period_seconds(plan),
        "speedup": period_seconds(few) / period_seconds(plan),
        "published": 3.93,
    }


def over_alike(folder: Path, model: str, megabits: float) -> dict[str, Any]:
    """Return the speedup over the partition that takes all devices for alike, on devices that are not."""
    profile = read_pipeedge(folder, model=model, hosts=UNEQUAL)
    believed = planned(read_pipeedge(folder, model=model, hosts={MINNOW: DEVICES}))
    stages = [
        gp.HandStage(ops=stage.ops, devices=(number,), micro_batch=MICRO)
        for number, stage in enumerate(believed.stages)
    ]
    alike = gp.hand_plan(profile.graph, profile.costs, profile.cluster, batch_size=MICRO, stages=stages, inference=True)
    plan = planned(profile)
    return {
        "model": model,
        "devices": f"8 of each, half of them with {megabits:g} Mb/s",
        "stages": len(plan.stages),
        "against": "PipeDream",
        "baseline_seconds": period_seconds(alike),
        "period_seconds": period_seconds(plan),
        "speedup": period_seconds(alike) / period_seconds(plan),
        "published": None,
    }


def main() -> None:
    """Run the benchmark, write the table and JSON; fail if a plan is slower than its baseline."""
    if not DATA.exists():
        print(f"skipped: no profiles at {DATA}")
        return
    rows = list[dict[str, Any]]()
    for megabits in MEGABITS:
        with derived_profiles(megabits) as folder:
            rows = rows or [
                *(over_one(folder, model, kind) for model, kind in EQUAL),
                *(over_four(folder, model, MINNOW) for model in (BASE, LARGE, HUGE)),
            ]
            rows += [over_alike(folder, model, megabits) for model in (BASE, LARGE)]
    lines = [
        [
            row["model"].removeprefix("google/"),
            row["devices"],
            row["stages"],
            f"over {row['against']}",
            row["published"] or ("up to 4.16, other devices" if row["against"] == "PipeDream" else "-"),
            f"{row['speedup']:.2f}",
        ]
        for row in rows
    ]
    header = ["model", "devices", "stages", "speedup", "published, measured", "ours, simulated"]
    markdown("pipeedge", "Inference on 16 devices", (__doc__ or "").partition("\n\n")[2].strip(), header, lines)
    for line in lines:
        print(*line, sep="\t")
    print(f"saved {save('pipeedge', rows, simulated='published profiles, a full pipeline')}")
    assert all(row["speedup"] >= 1 for row in rows)
