"""Plans of single operations with decisions about memory, planned and trained by the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_cases import CONFIG, TASK, Run

CLUSTER = """
name = "two"
[intra_node]
latency = "50 us"
bandwidth = "1 GB/s"
[device_types.cpu]
memory = "1 GB"
peak = "50 GFLOP/s"
memory_bandwidth = "10 GB/s"
[[nodes]]
name = "n"
devices = { cpu = 2 }
host_memory = "1 GB"
"""
BLOCK = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 32), nn.Linear(32, 8)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)).tanh())


class Sum("""
STAGES: list[dict[str, Any]] = [
    {"ops": ["a.*"], "devices": [0], "micro_batch": 4, "recompute": ["a"]},
    {"ops": ["b.*", "sum*"], "devices": [1], "micro_batch": 4, "offload": ["b.up", "b.gelu"]},
]


@pytest.mark.usefixtures("forked_ranks")
def test_a_plan_of_single_operations_trains_alike_whatever_it_keeps(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    task = TASK.replace("class Sum(", BLOCK).replace(
        '"a": nn.Linear(4, 8), "b": nn.Linear(4, 8)', '"a": Block(), "b": Block()'
    )
    for name, text in {"tiny.py": task, "tiny.toml": CONFIG, "two.toml": CLUSTER}.items():
        Path(name).write_text(text)
    kept = [{key: value for key, value in stage.items() if key not in ("recompute", "offload")} for stage in STAGES]
    losses: list[list[float]] = []
    for number, stages in enumerate((kept, STAGES)):
        Path("stages.json").write_text(json.dumps({"graphpipe": "stages", "schema_version": 1, "stages": stages}))
        words = ("--look-into", "*", "--cluster", "two.toml", "--batch", 16, "--stages", "stages.json", "--no-cache")
        made = run("plan", "tiny.py:model", *words, "-o", f"plan-{number}.json")
        assert made.code == 0, made.err
        assert ("recomputes 896 B" in made.out and "offloads 512 B" in made.out) == bool(number), made.out
        ran = run("train", "tiny.toml", "cluster=two.toml", "--plan", f"plan-{number}.json", "--json", "train.steps=3")
        assert ran.code == 0, ran.err
        lines = (Path(ran.json["directory"]) / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    assert losses[0] == losses[1]
