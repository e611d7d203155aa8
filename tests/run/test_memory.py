"""What the simulator says a rank holds, against what torch has allocated in a real step."""

from pathlib import Path

import pytest
import torch
from run_memory import peak_of_a_step
from run_ranks import run_ranks, values

from graphpipe.api import hand_plan, simulate
from graphpipe.costs import resolve
from graphpipe.costs.profiler import Effort
from graphpipe.model import capture
from graphpipe.model.profile import profile
from graphpipe.model.zoo import zoo_model
from graphpipe.plan.hand import HandStage

CUTS = (("layers.0.*", "layers.1.*"), ("layers.2.*", "layers.3.*", "head*"))
ONCE = Effort(repeats=1, most=1, seconds=0.0)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_measured_memory_is_as_predicted(schedule: str, tmp_path: Path) -> None:
    zoo, cluster = zoo_model("gpt-small"), resolve("local:2")
    graph = capture(zoo.module, zoo.example_inputs)
    inputs, targets = zoo.batch(torch.Generator().manual_seed(0), 32)
    costs = profile(
        zoo.module, inputs, cluster, graph=graph, loss_fn=zoo.loss_fn, targets=targets, batch_sizes=(4, 8), effort=ONCE
    )
    stages = [HandStage(ops=ops, devices=(at,), micro_batch=8) for at, ops in enumerate(CUTS)]
    plan = hand_plan(graph, costs, cluster, batch_size=32, stages=stages, schedule=schedule)
    plan.save(tmp_path / "plan.json")
    found = values(run_ranks(peak_of_a_step, 2, tmp_path / "ranks", str(tmp_path / "plan.json"), str(tmp_path)))
    assert simulate(plan).peak_bytes == pytest.approx(found, rel=0.05)
