"""Plans in the forms of other tools, and a format from outside."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from builders import Part, chain, make_plan

import graphpipe as gp
from graphpipe.cli.main import main
from graphpipe.errors import InvalidInput
from graphpipe.exporters import registry
from graphpipe.exporters.exo import write_exo
from graphpipe.exporters.exporter import Exported, Exporter
from graphpipe.exporters.layers import write_layers
from graphpipe.exporters.registry import find_exporter, register_exporter
from graphpipe.graph import Edge, Graph, Op


def layered(cuts: tuple[int, ...]) -> gp.Plan:
    """Return an embedding, three layers of two operators and a head, cut after these operators."""
    names = [
        "embed",
        *(f"decoder.layers.{layer}.{part}" for layer in range(3) for part in ("attention", "mlp")),
        "head",
    ]
    ops = tuple(Op(name=name, parameters=(f"{name}.w",), parameter_bytes=1.0) for name in names)
    edges = tuple(Edge(source=a, target=b, bytes_per_sample=1.0) for a, b in pairwise(names))
    graph = Graph(name="layered", ops=ops, edges=edges)
    cluster = gp.Cluster.preset(f"local:{len(cuts) + 1}")
    bounds = [0, *cuts, len(names)]
    stages = [
        gp.HandStage(ops=tuple(names[a:b]), devices=(n,), micro_batch=2) for n, (a, b) in enumerate(pairwise(bounds))
    ]
    return gp.hand_plan(graph, gp.estimate(graph, cluster), cluster, batch_size=4, stages=stages, inference=True)


def test_exo_gets_half_open_intervals_of_whole_layers() -> None:
    body = json.loads(write_exo(layered((5,))).text)
    shards = [each["shard"]["PipelineShardMetadata"] for each in body["shards"]]
    assert [(each["start_layer"], each["end_layer"], each["n_layers"]) for each in shards] == [(0, 2, 3), (2, 3, 3)]
    assert [(each["device_rank"], each["world_size"]) for each in shards] == [(0, 2), (1, 2)]
    assert [each["node_id"] for each in body["shards"]] == ["node0/cpu-0", "node0/cpu-1"]
    ends = [each["shard"]["PipelineShardMetadata"] for each in json.loads(write_exo(layered((1, 7))).text)["shards"]]
    assert [(each["start_layer"], each["end_layer"]) for each in ends] == [(0, 0), (0, 3), (3, 3)]


def test_exo_refuses_what_it_cannot_run() -> None:
    with pytest.raises(InvalidInput, match=r"layer decoder.layers.1 is in stages 's0' and 's1'"):
        write_exo(layered((4,)))
    with pytest.raises(InvalidInput, match="has no list of layers"):
        write_exo(make_plan([Part(), Part()], chain(2, 1.0)))
    parts = [Part(), Part(), Part()]
    with pytest.raises(InvalidInput, match="stage 's0' is not part of a chain"):
        write_exo(make_plan(parts, [(0, 2, 1.0), (1, 2, 1.0)]))
    shared = make_plan([Part(devices=(0, 1))], [])
    shared = replace(shared, stages=(replace(shared.stages[0], tensor=2),))
    with pytest.raises(InvalidInput, match="stage 's0' is not part of a chain of single devices"):
        write_exo(shared)


def test_layers_names_what_every_device_computes() -> None:
    plan = layered((5,))
    body = json.loads(write_layers(plan).text)
    assert [each["device"] for each in body["hosts"]] == ["node0/cpu-0", "node0/cpu-1"]
    assert [tuple(stage["operators"]) for each in body["hosts"] for stage in each["stages"]] == [
        stage.ops for stage in plan.stages
    ]
    assert body["hosts"][0]["stages"][0]["feeds"] == ["s1"]


def count(plan: gp.Plan) -> Exported:
    return Exported(text=f"{len(plan.stages)}\n", notes=("Counted.",))


def test_a_registered_format_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry.EXPORTERS, "_items", dict(registry.EXPORTERS))
    register_exporter(Exporter(name="count", summary="a number", write=count))
    layered((5,)).save(tmp_path / "plan.json")
    words = ["export", str(tmp_path / "plan.json"), "--format"]
    assert main([*words, "count"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "2\n"
    assert printed.err == "graphpipe: warning: Counted.\n"
    assert main([*words, "exo", "-o", str(tmp_path / "exo.json")]) == 0
    assert json.loads((tmp_path / "exo.json").read_text())["model_id"] == "layered"
    with pytest.raises(InvalidInput, match="another format has this name"):
        register_exporter(Exporter(name="exo", summary="", write=count))
    with pytest.raises(InvalidInput, match=r"unknown format 'exoo'\. Did you mean 'exo'"):
        find_exporter("exoo")
