"""Run one case of a runtime benchmark: its inputs to the ranks, and their measurements."""

import json
import tempfile
from pathlib import Path
from typing import Any

from bench.running.alternate import paired_ratio, slowest, summary
from graphpipe.launch.launcher import launch
from graphpipe.plans import Plan


def run_case(
    entry: str, plan: Plan, model: str, *, ranks: int, against: str, warmup: int, repeats: int
) -> dict[str, Any]:
    """Run a function of `bench.running.runtime_rank` on every rank, and return the figures of its engines.

    Args:
        entry: the function's name.
        plan: ours.
        model: of the zoo.
        ranks: processes, of one thread each.
        against: the other engine.
        warmup: rounds before those that count.
        repeats: rounds that count.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        plan.save(job.with_name("plan.json"))
        case = {
            "plan": str(job.with_name("plan.json")),
            "model": model,
            "ranks": ranks,
            "warmup": warmup,
            "repeats": repeats,
        }
        job.write_text(json.dumps(case))
        launch(f"bench.running.runtime_rank:{entry}", ranks, arguments=[str(job)], environment={"OMP_NUM_THREADS": "1"})
        seconds = slowest([json.loads(Path(f"{job}.{rank}").read_text()) for rank in range(ranks)])
    stage = plan.stages[0]
    row = {"model": model, "ranks": ranks, "schedule": plan.schedule, "micro_batch": stage.micro_batch}
    row |= {"batch": plan.batch_size, "against": against} | summary(seconds, "ours", against)
    unchecked = seconds.get("unchecked")
    return row | ({"unchecked_ratio": paired_ratio(unchecked, seconds[against])} if unchecked else {})
