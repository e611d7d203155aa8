"""Several hosts, each with a network and processes of its own, train like one; a host that is cut off is detected."""

import importlib
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from forked_programs import forked_programs
from safetensors.torch import load_file
from uninterrupted import train_uninterrupted

import graphpipe as gp
from bench.running.hosts.host_runs import DIGITS, TRAIN, TRAIN_EACH, run_of, torchrun, wait
from bench.running.hosts.namespaces import hosts, why_not
from graphpipe.training.config.from_toml import read_config
from graphpipe.training.run_folder.metrics_log import read_metrics_log
from graphpipe.training.run_folder.recoveries import read_recoveries
from graphpipe.training.run_folder.run_folder import RunFolder

pytestmark = pytest.mark.skipif(bool(WHY := why_not()), reason=WHY)

BATCH = 64
SIZE, LIMIT, SAVE = f"train.batch_size={BATCH}", "run.timeout_seconds=20", "train.checkpoint_every=2"
CLUSTER = """
cores_per_node = 1
intra_node = { latency = "50 us", bandwidth = "1.5 GB/s" }
inter_node = { latency = "100 us", bandwidth = "RATE" }
device_types.cpu = { memory = "4 GB", peak = "20 GFLOP/s", memory_bandwidth = "10 GB/s" }
nodes = [{ name = "host", devices = { cpu = 1 }, count = COUNT }]
"""
Planning = Callable[..., gp.Plan]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planning:
    """Return a function that plans the digits example for so many hosts with links of a rate, in cluster.toml."""
    monkeypatch.syspath_prepend(DIGITS.parent)
    monkeypatch.setenv("PYTHON_EXEC", str(forked_programs() / "python"))  # torchrun starts its ranks with it.
    module, example_inputs = importlib.import_module("digits").model()
    graph = gp.capture(module, example_inputs)

    def plan(count: int, rate: str, micro_batch: int | None = None) -> gp.Plan:
        toml = tmp_path / "cluster.toml"
        toml.write_text(CLUSTER.replace("RATE", rate).replace("COUNT", str(count)))
        cluster = gp.Cluster.load(toml)
        found = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=BATCH, micro_batch=micro_batch)
        assert len(found.used_devices) == count
        return found

    return plan


def alone(plans: Sequence[tuple[gp.Plan, int]], folder: Path) -> dict[str, torch.Tensor]:
    """Train in this process by one plan after the other; return the weights."""
    # A sum of two is the same in any order: bit for bit.
    assert max(stage.degree for plan, _ in plans for stage in plan.stages) <= 2
    return train_uninterrupted(read_config(DIGITS, [SAVE, SIZE]), folder, plans)


def check_equal(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert weights.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(weights[name], tensor)] == []


def wait_for(path: Path, agents: Sequence[subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + 150
    while not path.exists():
        assert time.monotonic() < end, f"{path} was not made"
        assert [agent.poll() for agent in agents] == [None] * len(agents)
        time.sleep(0.1)


@pytest.mark.slow
def test_two_hosts_train_like_one_and_faster_by_a_plan_that_knows_their_link(plan: Planning, tmp_path: Path) -> None:
    plans = {"unaware": plan(2, "1.5 GB/s"), "aware": plan(2, "10 Mb/s")}
    assert [(stage.ops, stage.devices) for stage in plans["unaware"].stages] != [
        (stage.ops, stage.devices) for stage in plans["aware"].stages
    ]
    runs = {name: run_of(plan, tmp_path / name, LIMIT, SIZE, "train.steps=2") for name, plan in plans.items()}
    with (
        hosts(2, tmp_path, "10mbit") as on,
        torchrun(on, tmp_path, *TRAIN_EACH, *(run.path for run in runs.values())) as agents,
    ):
        wait_for(runs["unaware"].metrics_log, agents)
        assert [host.listening() for host in on] == [{host.address} for host in on]
        assert wait(agents, 150) == [0, 0], [(tmp_path / f"{host.name}.txt").read_text() for host in on]
        assert [host.running() for host in on] == [[], []]
    for name, plan_of_run in plans.items():
        check_equal(load_file(runs[name].weights), alone([(plan_of_run, 2)], tmp_path / f"{name}-alone"))
    seconds = {name: read_metrics_log(run.metrics_log)[-1].seconds for name, run in runs.items()}
    ratio = seconds["unaware"] / seconds["aware"]
    print(f"10 Mb/s: {seconds['unaware']:.2f} s against {seconds['aware']:.2f} s for the aware plan: {ratio:.1f} times")
    assert ratio > 2


@pytest.mark.slow
def test_one_of_four_hosts_is_cut_off_and_the_others_continue(
    plan: Planning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    first, run, steps = plan(4, "50 Mb/s", 8), RunFolder(tmp_path / "runs" / "digits-job"), 8
    first.save(tmp_path / "plan.json")
    files = [
        f"cluster={tmp_path / 'cluster.toml'}",
        f"run.directory={run.path.parent}",
        "--plan",
        tmp_path / "plan.json",
    ]
    words = ["--elastic", *files, LIMIT, SIZE, SAVE, "plan.micro_batch=8", f"train.steps={steps}"]
    soon = "keep_alive_interval=1,last_call_timeout=3"
    options = ["--nnodes", "3:4", "--rdzv-id", "job", "--max-restarts", "2", "--rdzv-conf", soon]
    with hosts(4, tmp_path, "50mbit") as on, torchrun(on, tmp_path, *TRAIN, *words, options=options) as agents:
        wait_for(run.checkpoints / "step-00000002", agents)
        on[2].cut_off()
        start = time.monotonic()
        assert wait([agents[number] for number in (0, 1, 3)], 150) == [0, 0, 0]
        print(f"training had ended {time.monotonic() - start:.1f} s after the cut")
        assert agents[2].wait(60) != 0
        assert [host.running() for host in on] == [[]] * 4
    output = {host.name: (tmp_path / f"{host.name}.txt").read_text() for host in on}
    assert any("host host2 cannot be reached" in output[name] for name in ("host0", "host1", "host3")), output
    recovery = read_recoveries(run)[-1]
    print(recovery)
    assert recovery.devices == ("host0/cpu-0", "host1/cpu-0", "host3/cpu-0")
    assert recovery.step in range(2, steps, 2)
    assert 0 < recovery.seconds < 120
    assert json.loads((run.metrics).read_text())["steps"] == steps
    plans = [(first, recovery.step), (gp.Plan.load(run.plan), steps)]
    check_equal(load_file(run.weights), alone(plans, tmp_path / "alone"))
