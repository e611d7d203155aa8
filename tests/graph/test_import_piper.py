"""Piper's inputs, made up and real."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphpipe.errors import InvalidInput
from graphpipe.graph import decompose, read_piper

DATA = Path(__file__).parents[3] / "shared" / "data" / "piper" / "bert32a100.json"


def variant(name: str, seconds: float) -> dict[str, Any]:
    sizes = {"parameterSize": 64.0, "memoryUsageA": 96.0, "memoryUsageB": 1.0, "syncTimeFw": {}, "syncTimeBw": {}}
    return {"id": name, "timePerSample": seconds, **sizes}


def content() -> dict[str, Any]:
    nodes = [
        {"id": number, "name": "Layer", "TMPCs": {"1": [variant("vanilla", 0.3), variant("activation recomp", 0.4)]}}
        for number in range(3)
    ]
    edges = [{"sourceId": 0, "destId": to, "communicationCost": 8.0 * to} for to in (1, 2)]
    return {"maxDevices": 2, "maxMemoryPerDevice": 1, "bandwidth": 1, "mbsInBatch": 4, "nodes": nodes, "edges": edges}


def write(tmp_path: Path, change: Callable[[dict[str, Any]], object] = lambda _: None) -> Path:
    body = content()
    change(body)
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(body))
    return path


def test_units_and_the_split_of_the_time(tmp_path: Path) -> None:
    graph = read_piper(write(tmp_path), samples=2)
    first = graph["Layer.0"]
    assert graph.name == "tiny"
    assert first.kind == "Layer"
    assert first.measured is not None
    assert first.measured.forward_seconds == pytest.approx(0.1)
    assert first.measured.backward_seconds == pytest.approx(0.2)
    assert first.measured.samples == 2
    assert (first.parameter_bytes, first.work.saved_bytes_per_sample, first.output_bytes_per_sample) == (64, 48, 8)
    assert [(edge.source, edge.target, edge.bytes_per_sample) for edge in graph.edges] == [
        ("Layer.0", "Layer.1", 4),
        ("Layer.0", "Layer.2", 8),
    ]


def vanilla(body: dict[str, Any]) -> dict[str, Any]:
    return body["nodes"][1]["TMPCs"]["1"][0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda body: body.update(nodez=[]), "field nodez"),
        (lambda body: body.pop("edges"), "field edges: Field required"),
        (lambda body: body["edges"][1].update(destId=7), r"edges\.1\.destId: names node 7, which is not in nodes"),
        (lambda body: body["edges"][1].update(destId=0), "the graph has a cycle: Layer.0 -> Layer.0"),
        (lambda body: body["edges"][1].update(destId=1), "edge Layer.0 -> Layer.1 is listed 2 times"),
        (lambda body: body["nodes"][1].update(id=0), "two nodes have the same id"),
        (lambda body: vanilla(body).update(id="other"), r"nodes\.1\.TMPCs\.1: has no variant 'vanilla'"),
        (
            lambda body: vanilla(body).update(timePerSample=-1),
            "variant vanilla, timePerSample: is -1.0, must be finite",
        ),
        (lambda body: vanilla(body).update(timePerSample=float("nan")), "NaN is not a JSON number"),
        (lambda body: vanilla(body).update(parameterSize="big"), r"nodes\.1\.TMPCs\.1\.0\.parameterSize: .*'big'"),
        (lambda body: body.update(nodes=[], edges=[]), "the graph has no operators"),
    ],
)
def test_a_bad_file_is_refused_with_its_key(tmp_path: Path, change: Callable[..., object], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence) as raised:
        read_piper(write(tmp_path, change))
    assert "tiny.json" in str(raised.value)


def test_truncated_and_empty_files_are_refused_with_line_and_column(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(json.dumps(content(), indent=1)[:90])
    with pytest.raises(InvalidInput, match=r"not valid JSON: .*\(line 6, column 10\)"):
        read_piper(path)
    path.write_text(" ")
    with pytest.raises(InvalidInput, match="the file is empty"):
        read_piper(path)


def test_milliseconds_give_a_warning_with_their_sum(tmp_path: Path) -> None:
    def in_milliseconds(body: dict[str, Any]) -> None:
        vanilla(body).update(timePerSample=300.0)

    with pytest.warns(UserWarning, match="sum to 301 s. Are the times in another unit"):
        read_piper(write(tmp_path, in_milliseconds))


@pytest.mark.skipif(not DATA.is_file(), reason=f"no published input at {DATA}")
def test_published_bert() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = read_piper(DATA)
    assert len(graph.ops) == 37
    assert sum(op.kind == "ParallelTransformerLayer" for op in graph.ops) == 32
    seconds = [op.measured.forward_seconds + op.measured.backward_seconds for op in graph.ops if op.measured]
    assert sum(seconds) == pytest.approx(0.972864)
    assert decompose(graph).ops[-32:-1] == graph.order[-32:-1]
