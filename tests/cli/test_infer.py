"""`graphpipe infer`: answers in order, once, with the bits of the model; every mistake is one sentence."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from cli_cases import Run
from safetensors.torch import load_file, save_file

import graphpipe as gp
from graphpipe.inference.load_model import load_model

MODEL = """
import time
import torch
from torch import nn




def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)), torch.zeros(4, 4)


def requests(pause=0.0):
    generator = torch.Generator().manual_seed(1)
    for number in range(30):
        time.sleep(pause)
        yield torch.randn(number % 5 + 1, 4, generator=generator)


def slow():
    return requests(0.1)
"""
SAMPLES = 90
"""Of 30 requests of 1 to 5 samples."""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the plan file of a model in two stages. Its folder is the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODEL)
    model = load_model("mine.py:model", tmp_path, None)
    module, inputs = model.module, model.example_inputs
    graph, cluster = gp.capture(module, inputs), gp.Cluster.preset("local:2")
    parts = (graph.order[:1], graph.order[1:])
    stages = [gp.HandStage(ops=ops, devices=(n,), micro_batch=4) for n, ops in enumerate(parts)]
    found = gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8, stages=stages, inference=True)
    found.save("plan.json")
    return "plan.json"


def expected(samples: int = SAMPLES) -> torch.Tensor:
    """Return the model's answers, computed in the same micro-batches."""
    module = load_model("mine.py:model", Path.cwd(), None).module
    rows = torch.cat([*_requests()])[:samples]
    with torch.no_grad():
        return torch.cat([module(rows[at : at + 4]) for at in range(0, samples, 4)])


def _requests() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(number % 5 + 1, 4, generator=generator) for number in range(30)]


@pytest.mark.usefixtures("forked_ranks")
def test_the_answers_are_the_models_bitwise(run: Run, plan: str) -> None:
    ran = run("infer", plan, "--model", "mine.py:model", "--data", "mine.py:requests", "-o", "a.safetensors", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["requests"] == 30
    assert ran.json["samples"] == SAMPLES
    assert ran.json["failed"] == []
    found = load_file("a.safetensors")
    assert torch.equal(found["output"], expected())
    assert not found["graphpipe.failed"].any()
    assert not list(Path.cwd().glob("*.partial"))


@pytest.mark.usefixtures("forked_ranks")
def test_a_killed_rank_is_named_and_the_rest_is_answered_once_on_the_others(run: Run, plan: str) -> None:
    words = ("infer", plan, "--model", "mine.py:model", "--data", "mine.py:requests", "-o", "a.safetensors")
    start = time.monotonic()
    ran = run(*words, "--fault", "kill@rank1:step4")
    assert time.monotonic() - start < 60
    assert ran.code == 4
    assert "rank 1 (host" in ran.err
    assert "stage 's1', step 4" in ran.err
    assert "SIGKILL" in ran.err
    assert not Path("a.safetensors").exists()
    again = run(*words)
    assert again.code == 2
    assert "--resume answers the rest" in again.err
    resumed = run(*words, "--resume", "--elastic", "--fault", "raise@rank1:step2")
    assert resumed.code == 0, resumed.err
    assert "Lost: node0/cpu-1" in resumed.err
    assert "30 requests, 90 of 90 samples answered" in resumed.out
    torch.testing.assert_close(load_file("a.safetensors")["output"], expected())


@pytest.mark.usefixtures("plan", "forked_ranks")
def test_ctrl_c_ends_in_one_sentence_and_keeps_the_answers() -> None:
    words = ["mine.py:model", "--cluster", "local:1", "--batch", "8", "--data", "mine.py:slow", "-o", "a.jsonl"]
    command = [sys.executable, "-m", "graphpipe", "infer", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        journal, end = Path("a.jsonl.partial"), time.monotonic() + 200
        while not (journal.exists() and journal.stat().st_size > 500) and time.monotonic() < end:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.endswith("--resume continues\ngraphpipe: interrupted\n")
    assert journal.exists()
    assert not Path("a.jsonl").exists()


@pytest.mark.usefixtures("forked_ranks")
def test_weights_of_a_file_and_lines_that_cannot_be_read(run: Run, plan: str) -> None:
    module = load_model("mine.py:model", Path.cwd(), None).module
    save_file({name: each * 0 for name, each in module.state_dict().items()}, "zero.safetensors")
    Path("requests.jsonl").write_text('[[1, 2, 3, 4]]\n[[1, 2\n{"x": 1}\n[[1, 2, 3, 4], [5, 6, 7, 8]]\n')
    words = ("infer", "mine.py:model", "--cluster", "local:2", "--batch", "8", "--data", "requests.jsonl")
    ran = run(*words, "-o", "a.jsonl", "--weights", "zero.safetensors")
    assert ran.code == 0, ran.err
    assert "request 1, sample 0 failed: line 2 is not JSON" in ran.out
    assert "request 2, sample 0 failed: line 3: the model takes no input 'x'" in ran.out
    lines = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    zeros = [0.0, 0.0, 0.0]
    assert [each["outputs"] for each in lines] == [{"output": [zeros]}, None, None, {"output": [zeros, zeros]}]


def test_one_sentence_names_the_mistake(run: Run, plan: str) -> None:
    good = ("mine.py:model", "--cluster", "local:2", "--batch", "8", "--data", "d.npz", "-o", "a.npz")
    module = load_model("mine.py:model", Path.cwd(), None).module
    save_file({"other": torch.zeros(1)}, "other.safetensors")
    graph, cluster = gp.capture(module, torch.zeros(4, 4)), gp.Cluster.preset("local:1")
    gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8).save("training.json")
    for words, part in (
        (("plan.json", "--data", "d.npz", "-o", "a.npz"), "--model: is missing"),
        (("plan.json", "--model", "m", "--batch", "3", "--data", "d", "-o", "a.npz"), "--batch: does not go with"),
        (("training.json", "--model", "mine.py:model", "--data", "d.npz", "-o", "a.npz"), "the plan trains"),
        (good[:3] + good[5:], "--batch: is missing"),
        (good, "d.npz: cannot be read: No such file"),
        ((*good, "-o", "a.csv"), "'a.csv' has no known ending"),
        ((*good, "--weights", "missing"), "missing: cannot be read: No such file"),
        ((*good, "--weights", "other.safetensors"), "other.safetensors: has no '0.weight'"),
        ((*good, "--request-samples", "0"), "--request-samples: is 0"),
        ((*good, "--fault", "explode"), "explode"),
        ((*good, "--planner", "piper"), "plans only training"),
        (("nothing.py:model", *good[1:]), "nothing.py: no such file"),
    ):
        ran = run("infer", *words)
        assert ran.code == 2, (words, ran.err)
        lines = ran.err.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("graphpipe: error: ")
        assert part in lines[0], lines
