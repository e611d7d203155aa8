"""The simulator's memory of a rank equals what torch allocates in a real step."""

from pathlib import Path

import pytest
import torch
from run_memory import peak_of_a_step
from run_ranks import run_ranks, values

from graphpipe.api import hand_plan, plan, simulate
from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable, State
from graphpipe.graph import Graph
from graphpipe.model.capture.capture import capture
from graphpipe.model.zoo.registry import zoo_model
from graphpipe.planners.by_hand import HandStage
from graphpipe.plans import Plan
from graphpipe.profiler.effort import Effort
from graphpipe.profiler.profile import profile

CUTS = (("layers.0.*", "layers.1.*"), ("layers.2.*", "layers.3.*", "head*"))
BATCH = 32
ONCE = Effort(repeats=1, most=1, seconds=0.0)


def measured_costs(name: str, cluster: Cluster) -> tuple[Graph, CostTable]:
    """Return a model's graph, and its operators' memory and seconds measured here, once."""
    zoo = zoo_model(name)
    graph = capture(zoo.module, zoo.example_inputs)
    inputs, targets = zoo.batch(torch.Generator().manual_seed(0), BATCH)
    sizes = (4, 8, BATCH)
    return graph, profile(
        zoo.module, inputs, cluster, graph=graph, loss_fn=zoo.loss_fn, targets=targets, batch_sizes=sizes, effort=ONCE
    )


def assert_as_predicted(made: Plan, name: str, folder: Path, allowed: float) -> None:
    """Train, and compare the peak of every rank with the simulator's."""
    found, predicted = measured_peaks(made, name, folder), simulate(made).peak_bytes
    assert [predicted[device] for device in made.used_devices] == pytest.approx(found, rel=allowed)


def measured_peaks(made: Plan, name: str, folder: Path) -> list[float]:
    """Train, and return the peak of every rank."""
    folder.mkdir(exist_ok=True)
    made.save(folder / "plan.json")
    ranks = len(made.used_devices)
    return values(run_ranks(peak_of_a_step, ranks, folder / "ranks", name, str(folder / "plan.json"), str(folder)))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_measured_memory_is_as_predicted(schedule: str, tmp_path: Path) -> None:
    cluster = Cluster.resolve("local:2")
    graph, costs = measured_costs("gpt-small", cluster)
    stages = [HandStage(ops=ops, devices=(at,), micro_batch=8) for at, ops in enumerate(CUTS)]
    by_hand = hand_plan(graph, costs, cluster, batch_size=BATCH, stages=stages, schedule=schedule)
    assert_as_predicted(by_hand, "gpt-small", tmp_path, 0.05)


@pytest.mark.parametrize("ranks", [2, 4])
def test_measured_memory_of_sharded_state_is_as_predicted(ranks: int, tmp_path: Path) -> None:
    cluster = Cluster.resolve(f"local:{ranks}")
    graph, costs = measured_costs("gpt-small", cluster)
    states: tuple[State, ...] = ("whole", "optimizer", "all")
    peaks: list[float] = []
    for state in states:
        stage = HandStage(ops=("*",), devices=tuple(range(ranks)), micro_batch=8, state=state)
        by_hand = hand_plan(graph, costs, cluster, batch_size=BATCH, stages=[stage])
        found = measured_peaks(by_hand, "gpt-small", tmp_path / state)
        peaks.append(max(simulate(by_hand).peak_bytes))
        # With `all`, gloo sometimes keeps the buffer of the gathered weights for longer on a rank.
        assert peaks[-1] == pytest.approx(min(found) if state == "all" else max(found), rel=0.05)
    assert peaks[1] < peaks[2] < peaks[0]


@pytest.mark.parametrize(
    ("name", "ranks"), [("gpt-small", 4), ("two-tower-small", 2), ("two-tower-small", 4), ("mmt-small", 4)]
)
def test_memory_of_planned_stages_is_as_predicted(name: str, ranks: int, tmp_path: Path) -> None:
    cluster = Cluster.resolve(f"local:{ranks}")
    graph, costs = measured_costs(name, cluster)
    planned = plan(graph, costs, cluster, batch_size=BATCH, micro_batch=8)
    assert_as_predicted(planned, name, tmp_path, 0.10)
