"""Inference on 16 devices against one, with the profiles that PipeEdge has published (Hu et al., PipeEdge, DSD 2022).

Simulated: the planner `edgepipe`, links of 1 Gb/s, micro-batches of 8 samples, a full pipeline. PipeEdge's speedups are
measured on its own testbed. Reads ../shared/data/pipeedge beside the checkout.
"""

from pathlib import Path
from typing import Any

import graphpipe as gp
from bench.record import save
from graphpipe.importers.read_pipeedge import read_pipeedge
from graphpipe.plans.estimates import period_seconds

DATA = Path(__file__).parents[2] / "shared" / "data" / "pipeedge"
DEVICES, MICRO = 16, 8
PUBLISHED = {
    ("google/vit-base-patch16-224", "Minnowboard-E3845"): None,
    ("google/vit-base-patch16-224", "RCC-VE-C2000"): None,
    ("google/vit-large-patch16-224", "Minnowboard-E3845"): 10.59,
    ("google/vit-large-patch16-224", "RCC-VE-C2000"): None,
}
"""Speedups by model and device; None: not published."""


def row_of(model: str, kind: str) -> dict[str, Any]:
    """Return the speedup of 16 devices of one kind over one that has the memory for all layers."""
    profile = read_pipeedge(DATA, model=model, hosts={kind: DEVICES})
    plan = gp.plan(
        profile.graph,
        profile.costs,
        profile.cluster,
        batch_size=MICRO,
        micro_batch=MICRO,
        planner="edgepipe",
        inference=True,
    )
    alone = sum(row.forward(MICRO) for row in profile.costs.rows if row.device_type == kind)
    return {
        "model": model,
        "device": kind,
        "stages": len(plan.stages),
        "alone_seconds": alone,
        "period_seconds": period_seconds(plan),
        "speedup": alone / period_seconds(plan),
        "published": PUBLISHED[model, kind],
    }


def main() -> None:
    """Run the benchmark, print the speedups and write JSON."""
    if not DATA.exists():
        print(f"skipped: no profiles at {DATA}")
        return
    rows = [row_of(model, kind) for model, kind in PUBLISHED]
    for row in rows:
        print(row["model"], row["device"], f"{row['speedup']:.1f}", row["published"] or "-", sep="\t")
    print(f"saved {save('pipeedge', rows, simulated='published profiles, links of 1 Gb/s, a full pipeline')}")


if __name__ == "__main__":
    main()
