"""The cost table: curves and refused inputs."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from graphpipe.costs import CostTable, Curve, OpCost, Temporaries
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import to_body
from graphpipe.graph import Graph, Op

GRAPH = Graph(name="g", ops=(Op(name="a"), Op(name="b")), edges=())


def row(op: str, *lines: tuple[float, float], device_type: str = "gpu") -> OpCost:
    curve = Curve(lines=lines)
    return OpCost(
        op=op,
        device_type=device_type,
        forward=curve,
        input_gradient=Curve(),
        weight_gradient=curve,
        source="profiled",
        error=0.05,
    )


def held(backward: tuple[float, float], loss: float) -> Temporaries:
    return Temporaries(forward=Curve(), backward=Curve(lines=(backward,)), loss_bytes_per_sample=loss)


def test_a_curve_is_the_largest_of_its_lines() -> None:
    curve = Curve(lines=((10.0, 1.0), (0.0, 3.0)))
    assert [curve(samples) for samples in (0, 1, 5, 6, 10)] == [0, 11, 15, 18, 30]
    assert Curve()(7) == 0


def test_a_saved_table_loads_equal(tmp_path: Path) -> None:
    table = CostTable(
        graph_fingerprint=GRAPH.fingerprint,
        rows=(row("a", (1.0, 2.0)), replace(row("b"), temporaries=held((3.0, 4.0), 5.0))),
        state_bytes_per_parameter_byte=2,
        optimizer_seconds_per_parameter_byte=1e-9,
        task_overhead_seconds=1e-5,
        step_overhead_seconds=2e-3,
    )
    table.save(tmp_path / "costs.json")
    assert CostTable.load(tmp_path / "costs.json") == table
    assert CostTable.load(tmp_path / "costs.json").fingerprint == table.fingerprint


def test_a_table_that_no_run_has_taught_is_what_it_was() -> None:
    """Files and fingerprints of plans that were made before runs taught the rest of a step stay the same."""
    table = CostTable(graph_fingerprint=GRAPH.fingerprint, rows=())
    assert "step_overhead_seconds" not in to_body(table)
    assert replace(table, step_overhead_seconds=1e-3).fingerprint != table.fingerprint


def test_a_table_written_before_temporaries_existed_loads(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    CostTable(graph_fingerprint=GRAPH.fingerprint, rows=(row("a"), row("b"))).save(path)
    written = json.loads(path.read_text())
    for each in written["rows"]:
        assert each.pop("temporaries") is None
    path.write_text(json.dumps(written))
    assert [each.temporaries for each in CostTable.load(path).rows] == [None, None]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"rows": (row("a"), row("a"))}, "cost of op a on gpu: is listed twice"),
        (
            {"rows": (row("a", (-1.0, 0.0)),)},
            "cost of op a on gpu, forward: begins at -1.0 for 0 samples, must not be negative",
        ),
        ({"rows": (row("a", (0.0, math.nan)),)}, r"forward: is 0.0 \+ nan n"),
        (
            {"rows": (replace(row("a"), temporaries=held((-1.0, 0.0), 0.0)),)},
            "cost of op a on gpu, temporaries.backward: begins at -1.0 for 0 samples",
        ),
        ({"rows": (replace(row("a"), temporaries=held((0.0, 0.0), -1.0)),)}, "temporaries.loss_bytes_per_sample"),
        ({"rows": (), "task_overhead_seconds": -1.0}, "costs, task_overhead_seconds: is -1.0, must be finite"),
        ({"rows": (), "step_overhead_seconds": -1.0}, "costs, step_overhead_seconds: is -1.0, must be finite"),
        ({"rows": (), "state_bytes_per_parameter_byte": math.inf}, "state_bytes_per_parameter_byte: is inf"),
    ],
)
def test_impossible_costs_are_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        CostTable(graph_fingerprint="", **fields)  # pyright: ignore[reportArgumentType]


def test_a_table_for_another_graph_or_device_is_refused() -> None:
    table = CostTable(graph_fingerprint=GRAPH.fingerprint, rows=(row("a"), row("b"), row("a", device_type="cpu")))
    table.check_for(GRAPH, {"gpu"})
    with pytest.raises(InvalidInput, match="no row for op 'b' on device type 'cpu'"):
        table.check_for(GRAPH, {"gpu", "cpu"})
    other = Graph(name="other", ops=(Op(name="a"),), edges=())
    with pytest.raises(InvalidInput, match=f"made for graph {GRAPH.fingerprint[:12]}, but graph 'other' is"):
        table.check_for(other, {"gpu"})
