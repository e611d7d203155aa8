"""The first minutes on a machine with GPUs: expected beside found, from what commands print."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_device import FakeKind

from graphpipe.cli.main import make_parser
from graphpipe.cluster import Cluster
from graphpipe.doctor.first_minutes import Done, StepResult, first_minutes
from graphpipe.doctor.this_machine import cluster_here
from graphpipe.plans import Plan
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace
from graphpipe.units import format_bytes


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run whose measured step is the predicted one."""
    from builders import Part, make_plan

    plan: Plan = make_plan([Part(parameter_bytes=4.0), Part()])
    trace: Trace = simulate(plan)
    for name in ("predicted", "measured"):
        trace.save(tmp_path / f"trace-{name}.json")
    return tmp_path


class Machine:
    """Answers commands as a machine with eight H100 should, apart from what is changed."""

    def __init__(self, run: Path, **changes: Any) -> None:
        self.run, self.changes = run, changes
        self.asked: list[list[str]] = []

    def __call__(self, words: Sequence[str]) -> Done:
        args, rest = make_parser().parse_known_args(list(words))  # Raises SystemExit if a command is wrong.
        assert not rest
        self.asked.append(list(words))
        if words[0] == "doctor":
            return self.done({"findings": self.changes.get("findings", [])})
        if words[0] == "profile":
            link = {"bandwidth_bytes_per_second": self.changes.get("bandwidth", 300e9), "latency_seconds": 20e-6}
            return self.done({"links": [{"link": link}]})
        if args.fault:
            seconds = self.changes.get("fault_seconds", 45.0)
            return Done(code=4, output={}, words="graphpipe: rank 1 (gpu-1) died\n", seconds=seconds)
        if crash := self.changes.get("crash"):
            return Done(code=1, output={}, words=f"...\n{crash}\n", seconds=1.0)
        rounding = 2e-2 if "train.precision=bf16" in words else 1e-4
        loss = self.changes.get("loss", 2.0 * (1 + rounding)) if "cluster=dgx-h100:1x8" in words else 2.0
        times = {"step_seconds_measured": self.changes.get("step", 1.05), "step_seconds_predicted": 1.0}
        return self.done({"loss_last": loss, "directory": str(self.run)} | times)

    def done(self, output: dict[str, Any]) -> Done:
        return Done(code=0, output=output, words="", seconds=20.0)

    def results(self, devices: int = 8) -> dict[str, StepResult]:
        steps = first_minutes(f"dgx-h100:1x{devices}", devices, Path("digits.toml"), self.run, self)
        return {step.name: step for step in steps}


def test_every_step_is_as_expected_on_a_machine_that_works(run_folder: Path) -> None:
    machine = Machine(run_folder)
    results = machine.results()
    assert {step.status for step in results.values()} == {"as expected"}, results
    assert {"links", "training in bf16", "training with fsdp2", "prediction"} <= {*results}
    assert sum("--fault" in words for words in machine.asked) == 3


@pytest.mark.parametrize(
    ("changes", "wrong", "found"),
    [
        ({"findings": [{"name": "nccl", "status": "problem", "what": "missing"}]}, {"installation"}, "nccl: missing"),
        ({"bandwidth": 20e9}, {"links"}, f"{format_bytes(20e9)}/s"),
        (
            {"loss": 2.01},
            {"training", "training with ddp", "training with fsdp2"},
            "2.0100",
        ),
        ({"step": 1.4}, {"prediction"}, "time +40%"),
        ({"fault_seconds": 80.0}, {f"a rank with a fault ({kind})" for kind in ("kill", "raise", "stop")}, "+60 s"),
    ],
)
def test_what_differs_is_said(run_folder: Path, changes: dict[str, Any], wrong: set[str], found: str) -> None:
    results = Machine(run_folder, **changes).results()
    assert {name for name, step in results.items() if step.status == "differs"} == wrong
    assert all(found in results[name].found for name in wrong)


def test_a_command_that_crashes_is_shown_with_its_last_words(run_folder: Path) -> None:
    results = Machine(run_folder, crash="RuntimeError: CUDA error: invalid device ordinal").results()
    assert results["training"].status == "differs"
    assert "CUDA error" in results["training"].found
    assert "CUDA error" in results["training"].words


def test_one_gpu_skips_what_needs_two(run_folder: Path) -> None:
    results = Machine(run_folder).results(devices=1)
    assert {name for name, step in results.items() if step.status == "skipped"} == {
        "links",
        *(f"a rank with a fault ({kind})" for kind in ("kill", "raise", "stop")),
    }


class Described(FakeKind):
    """Two devices with a name."""

    called = ""

    def count(self) -> int:
        return 2

    def describe(self, device: Any) -> str:
        return self.called

    def total_bytes(self, device: Any) -> float:
        return 24e9


@pytest.mark.parametrize(("called", "preset"), [("NVIDIA H100 80GB HBM3", "dgx-h100:1x2"), ("NVIDIA RTX 4090", "")])
def test_the_cluster_is_the_preset_of_the_gpus_or_a_file(called: str, preset: str, tmp_path: Path) -> None:
    kind = Described("cpu")
    kind.called = called
    found = cluster_here(kind, tmp_path)
    assert found == preset or found == str(tmp_path / "this-machine.toml")
    cluster = Cluster.resolve(found)
    assert len(cluster.devices) == 2
    assert preset or cluster.smallest_memory_bytes == 24e9
