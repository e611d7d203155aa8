"""The figures that loggers get: utilisation by hand, and what MLflow is given."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import graphpipe as gp
from graphpipe.cluster import Cluster
from graphpipe.graph import Edge, Graph, Op, Work
from graphpipe.training.run_folder.metrics_log import StepMetrics
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.telemetry import loggers
from graphpipe.training.telemetry.event import MemoryEvent
from graphpipe.training.telemetry.telemetry import Telemetry
from graphpipe.training.telemetry.utilisation import peak_flops, step_flops


def chain() -> Graph:
    work = Work(flops_per_sample=10.0, traffic_bytes_per_sample=1.0, saved_bytes_per_sample=1.0)
    frozen, trained, plain = (
        Op(name="frozen", parameters=("f",), parameter_bytes=4.0, work=work, trainable=False),
        Op(name="trained", parameters=("t",), parameter_bytes=4.0, work=work),
        Op(name="plain", work=work),
    )
    edges = (
        Edge(source="frozen", target="trained", bytes_per_sample=1.0),
        Edge(source="trained", target="plain", bytes_per_sample=1.0),
    )
    return Graph(name="chain", ops=(frozen, trained, plain), edges=edges)


@pytest.mark.parametrize(("preset", "count"), [("summit:1x2", 2), ("local:2", 2)])
def test_a_step_counts_the_halves_that_a_backward_has(preset: str, count: int) -> None:
    """The frozen operator only computes forwards, the first trained one no gradient of its input."""
    graph, cluster = chain(), Cluster.preset(preset)
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8)
    assert step_flops(plan) == 8 * 10 * (1 + 2 + 2)
    kind = cluster.device_types[0]
    used = len(plan.used_devices)
    expected = None if kind.is_processor else used * kind.peak_flops_per_second
    assert peak_flops(plan, "fp32") == expected
    assert used <= count


def test_the_peak_is_that_of_the_products_of_the_operators() -> None:
    """A model in bf16 without autocast used 1,500 % of its peak, which was that of fp32."""
    cluster = Cluster.preset("dgx-h100:1x1")
    half = tuple(replace(op, work=replace(op.work, products="bf16")) for op in chain().ops)
    plans = [
        gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=8)
        for graph in (replace(chain(), ops=half), replace(chain(), ops=(half[0], *chain().ops[1:])))
    ]
    assert peak_flops(plans[0], "fp32") == 989e12
    # Ten operations each: one at the peak of bf16, and two at that of fp32.
    assert peak_flops(plans[1], "fp32") == pytest.approx(3 / (1 / 989e12 + 2 / 67e12))


def test_utilisation_is_of_the_step_and_what_is_unknown_is_left_out() -> None:
    pipeline = SimpleNamespace(world=SimpleNamespace(rank=1))
    memory = MemoryEvent(step=3, held_bytes=5.0, peak_bytes=7.0)
    telemetry: Any = SimpleNamespace(pipeline=pipeline, batch_size=8, step_flops=4e12, peak_flops=16e12)
    step = StepMetrics(step=3, loss=0.5, seconds=0.5, gradient_norm=2.0, learning_rate=0.1)
    figures = Telemetry._figures(telemetry, step, memory)
    assert figures == {
        "train/loss": 0.5,
        "train/step_seconds": 0.5,
        "train/samples_per_second": 16.0,
        "train/learning_rate": 0.1,
        "train/gradient_norm": 2.0,
        "train/mfu": 0.5,
        "memory/rank1_held_bytes": 5.0,
        "memory/rank1_peak_bytes": 7.0,
    }
    telemetry.peak_flops = None
    rest = Telemetry._figures(telemetry, StepMetrics(step=3, loss=0.5, seconds=0.5), memory)
    assert figures.keys() - rest.keys() == {"train/mfu", "train/learning_rate", "train/gradient_norm"}


class Client:
    """Stands for `mlflow.MlflowClient`, with the signatures of its documentation. The package is not installed here."""

    def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        self.uri, self.batches, self.ended = tracking_uri, list[dict[str, Any]](), list[str]()
        CLIENTS.append(self)

    def get_experiment_by_name(self, name: str) -> Any:
        return None if name not in EXPERIMENTS else SimpleNamespace(experiment_id=EXPERIMENTS[name])

    def create_experiment(self, name: str, artifact_location: str | None = None, tags: Any = None) -> str:
        assert name not in EXPERIMENTS
        EXPERIMENTS[name] = "7"
        return "7"

    def create_run(
        self, experiment_id: str, start_time: int | None = None, tags: Any = None, run_name: str | None = None
    ) -> Any:
        self.run = (experiment_id, run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id="abc"))

    def log_batch(
        self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = (), synchronous: Any = None
    ) -> None:
        assert run_id == "abc"
        assert len(params) <= 100
        assert all(len(each.value) <= 500 for each in params)
        self.batches.append({"metrics": [*metrics], "params": [*params]})

    def set_terminated(self, run_id: str, status: str | None = None, end_time: int | None = None) -> None:
        self.ended.append(run_id)


CLIENTS: list[Client] = []
EXPERIMENTS: dict[str, str] = {}


def test_mlflow_gets_settings_and_metrics_of_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    package.MlflowClient = Client  # type: ignore[attr-defined]
    entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(  # type: ignore[attr-defined]
        key=key, value=value, timestamp=timestamp, step=step
    )
    entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setattr(loggers, "find_spec", lambda name: object())
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    settings = {"train": {f"setting{number}": "x" * 600 for number in range(150)}, "cluster": "local:2"}
    for _ in range(2):  # the experiment is there already
        with loggers.open_loggers(["mlflow"], RunFolder(tmp_path), settings) as (logger,):
            logger.log(1, {"train/loss": 0.5})
            logger.log(2, {"train/loss": 0.25, "train/gradient_norm": 3.0})
    first, second = CLIENTS
    assert first.uri == f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert first.run == second.run == ("7", tmp_path.name)
    params = {each.key: each.value for batch in first.batches for each in batch["params"]}
    assert len(params) == 151
    assert params["cluster"] == "local:2"
    metrics = [(each.step, each.key, each.value) for batch in first.batches for each in batch["metrics"]]
    assert metrics == [(1, "train/loss", 0.5), (2, "train/loss", 0.25), (2, "train/gradient_norm", 3.0)]
    assert first.ended == ["abc"]
