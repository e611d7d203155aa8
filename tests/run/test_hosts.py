"""Several hosts, each with a network and processes of its own, train like one; one that is cut off is missed."""

import importlib
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pytest
import torch
from run_hosts import DIGITS, hosts, training, wait, why_not
from safetensors.torch import load_file

import graphpipe as gp
from graphpipe.run.checkpoint_export import export
from graphpipe.run.checkpoint_folder import find
from graphpipe.run.config_file import read_config
from graphpipe.run.task import load_task
from graphpipe.run.train import WEIGHTS, train

pytest.importorskip("sklearn", reason="the digits come from scikit-learn: pip install graphpipe-torch[demo]")
pytestmark = pytest.mark.skipif(bool(WHY := why_not()), reason=WHY)

BATCH, LIMIT = 128, "run.timeout_seconds=15"
CLUSTER = """
cores_per_node = 1
intra_node = { latency = "50 us", bandwidth = "1.5 GB/s" }
inter_node = { latency = "100 us", bandwidth = "RATE" }
device_types.cpu = { memory = "4 GB", peak = "20 GFLOP/s", memory_bandwidth = "10 GB/s" }
nodes = [{ name = "host", devices = { cpu = 1 }, count = COUNT }]
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that plans the digits example for so many hosts with links of a rate, and saves the plan."""
    monkeypatch.syspath_prepend(DIGITS.parent)
    module, example_inputs = importlib.import_module("digits").model()
    graph = gp.capture(module, example_inputs)

    def plan(count: int, rate: str) -> Path:
        toml = tmp_path / f"{count}-{rate.partition(' ')[0]}.toml"
        toml.write_text(CLUSTER.replace("RATE", rate).replace("COUNT", str(count)))
        cluster = gp.Cluster.load(toml)
        found = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=BATCH)
        assert len(found.used_devices) == count
        assert max(stage.degree for stage in found.stages) <= 2  # Then sums are the same in any order: bit for bit.
        found.save(toml.with_suffix(".json"))
        return toml.with_suffix(".json")

    return plan


def steps(run: Path) -> list[dict[str, float]]:
    log = run / "metrics.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def train_on_one_host(plan: Path, folder: Path, count: int) -> dict[str, torch.Tensor]:
    """Train in this process; return the weights."""
    config = read_config(DIGITS, [f"train.steps={count}"])
    folder.mkdir()
    train(config, load_task(config.task, config.folder, config.train.seed), gp.Plan.load(plan), folder)
    return load_file(folder / WEIGHTS)


def check_equal(weights: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in wanted.items())


def test_a_plan_for_a_slow_link_is_faster_on_it_and_both_train_as_on_one_host(plan, tmp_path: Path) -> None:
    seconds: dict[str, float] = {}
    files = {"aware": plan(2, "10 Mb/s"), "unaware": plan(2, "1.5 GB/s")}
    shapes = {name: [(stage.ops, stage.devices) for stage in gp.Plan.load(file).stages] for name, file in files.items()}
    assert shapes["aware"] != shapes["unaware"]
    for name, file in files.items():
        folder = tmp_path / name
        folder.mkdir()
        with hosts(2, folder, "10mbit") as on, training(on, folder, "--plan", file, LIMIT, "train.steps=3") as agents:
            assert wait(agents, 150) == [0, 0], [(folder / f"{host.name}.txt").read_text() for host in on]
            assert [host.running() for host in on] == [[], []]
        run = folder / "runs" / "digits-1"
        check_equal(load_file(run / WEIGHTS), train_on_one_host(file, folder / "alone", 3))
        seconds[name] = median(step["seconds"] for step in steps(run)[1:])
    ratio = seconds["unaware"] / seconds["aware"]
    print(f"10 Mb/s: {seconds['unaware']:.2f} s against {seconds['aware']:.2f} s for the aware plan: {ratio:.1f} times")
    assert ratio > 1.5


def test_a_host_that_is_cut_off_ends_the_training_of_four(plan, tmp_path: Path) -> None:
    file, run = plan(4, "100 Mb/s"), tmp_path / "runs" / "digits-1"
    more = ["--plan", file, LIMIT, "train.epochs=1000", "train.checkpoint_every=2"]
    with hosts(4, tmp_path, "100mbit") as on, training(on, tmp_path, *more) as agents:
        wait_for_checkpoint(run, agents)
        on[2].cut_off()
        start = time.monotonic()
        assert 0 not in wait(agents, 90)
        print(f"all agents had ended {time.monotonic() - start:.1f} s after the cut")
        assert [host.running() for host in on] == [[]] * 4
    for host in on:
        said = (tmp_path / f"{host.name}.txt").read_text()
        # On the host itself the agent may be first to miss the others, and stop its rank.
        assert "host host2 cannot be reached" in said or host.name == "host2", said
    last = find(run / "checkpoints")
    assert last.newer == ()
    number = int(last.path.name.rpartition("-")[2])
    export(run, tmp_path / "exported.safetensors")
    check_equal(load_file(tmp_path / "exported.safetensors"), train_on_one_host(file, tmp_path / "alone", number))


def test_the_hosts_that_are_left_go_on(plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    run = tmp_path / "runs" / "digits-job"
    cluster = plan(2, "100 Mb/s").with_suffix(".toml")
    soon = "keep_alive_interval=1,last_call_timeout=2"
    options = ["--nnodes", "1:2", "--rdzv-id", "job", "--max-restarts", "2", "--rdzv-conf", soon]
    more = ["--elastic", LIMIT, f"cluster={cluster}", "train.steps=100", "train.checkpoint_every=2"]
    with hosts(2, tmp_path, "100mbit") as on, training(on, tmp_path, *more, options=options) as agents:
        wait_for_checkpoint(run, agents)
        on[1].cut_off()
        start, done = time.monotonic(), len(steps(run))
        while not (run / "recoveries.jsonl").exists() or len(steps(run)) < 3:
            assert agents[0].poll() is None
            assert time.monotonic() < start + 120
            time.sleep(0.2)
        print(f"went on {time.monotonic() - start:.1f} s after the cut")
        recovery = json.loads((run / "recoveries.jsonl").read_text())
        assert recovery["devices"] == ["host0/cpu-0"]
        assert recovery["step"] in range(2, done + 1, 2)
        assert agents[1].wait(60) != 0
        assert on[1].running() == []


def wait_for_checkpoint(run: Path, agents: Sequence[subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + 100
    while not list((run / "checkpoints").glob("step-*[0-9]")):
        assert time.monotonic() < end, "no checkpoint was made"
        assert [agent.poll() for agent in agents] == [None] * len(agents)
        time.sleep(0.1)
