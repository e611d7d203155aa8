"""A host that is cut off while hosts answer requests: the others answer the rest, each sample once."""

import time
from pathlib import Path

import pytest
import torch
from forked_programs import forked_programs
from safetensors.torch import load_file

import graphpipe as gp
from bench.running.hosts.host_runs import torchrun, wait
from bench.running.hosts.namespaces import hosts, why_not
from graphpipe.inference.load_model import load_model

pytestmark = pytest.mark.skipif(bool(WHY := why_not()), reason=WHY)

SAMPLES = 240
CLUSTER = """
intra_node = { latency = "50 us", bandwidth = "1.5 GB/s" }
inter_node = { latency = "100 us", bandwidth = "50 Mb/s" }
device_types.cpu = { memory = "4 GB", peak = "20 GFLOP/s", memory_bandwidth = "10 GB/s" }
nodes = [{ name = "host", devices = { cpu = 1 }, count = 3 }]
"""
MODEL = f"""
import time
import torch
from torch import nn


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)), torch.zeros(4, 4)


def rows():
    return torch.randn({SAMPLES}, 4, generator=torch.Generator().manual_seed(1))


def requests():
    for row in rows().split(2):
        time.sleep(0.05)
        yield row
"""


@pytest.mark.slow
def test_the_host_that_writes_the_answers_is_cut_off_and_the_others_answer_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_EXEC", str(forked_programs() / "python"))  # torchrun starts its ranks with it.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MODEL)
    model = load_model("mine.py:model", tmp_path, None)
    module, inputs = model.module, model.example_inputs
    Path("cluster.toml").write_text(CLUSTER)
    graph, cluster = gp.capture(module, inputs), gp.Cluster.load("cluster.toml")
    stages = [gp.HandStage(ops=(op,), devices=(number,), micro_batch=4) for number, op in enumerate(graph.order)]
    plan = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, stages=stages, inference=True)
    plan.save("plan.json")
    here = [f"{tmp_path}/{name}" for name in ("plan.json", "mine.py:model", "mine.py:requests", "answers.safetensors")]
    words = ["graphpipe", "infer", here[0], "--model", here[1], "--data", here[2], "-o", here[3]]
    words += ["--elastic", "--timeout", "20"]
    soon = "keep_alive_interval=1,last_call_timeout=3"
    options = ["--nnodes", "2:3", "--rdzv-id", "job", "--max-restarts", "2", "--rdzv-conf", soon]
    journal, end = Path("answers.safetensors.partial"), time.monotonic() + 200
    with hosts(3, tmp_path, "50mbit") as on, torchrun(on, tmp_path, *words, options=options) as agents:
        while not (journal.exists() and journal.stat().st_size > 2000):
            assert time.monotonic() < end
            assert [agent.poll() for agent in agents] == [None] * 3
            time.sleep(0.05)
        on[2].cut_off()  # It has the last stage.
        start = time.monotonic()
        codes = wait(agents[:2], 150)
        print(f"answered {time.monotonic() - start:.1f} s after the cut")
        agents[2].wait(60)
    said = {host.name: (tmp_path / f"{host.name}.txt").read_text() for host in on}
    assert codes == [0, 0], said
    assert any("host host2 cannot be reached" in text for text in said.values()), said
    found = load_file("answers.safetensors")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        torch.testing.assert_close(found["output"], module(torch.randn(SAMPLES, 4, generator=generator)))
    assert not found["graphpipe.failed"].any()
