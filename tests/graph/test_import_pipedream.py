"""PipeDream's profiles, made up and real."""

import warnings
from pathlib import Path

import pytest

from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph, Leaf, Parallel, Series, decompose, read_pipedream

DATA = Path(__file__).parents[3] / "shared" / "data" / "pipedream"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no published profiles at {DATA}")

COSTS = "forward_compute_time=3.0, backward_compute_time=6.0, activation_size=512.0, parameter_size=64.000"
NODE = f"node1 -- Linear(8, 8) -- {COSTS}\n"


def read(tmp_path: Path, text: str, samples: int = 4) -> Graph:
    path = tmp_path / "tiny.graph.txt"
    path.write_text(text)
    return read_pipedream(path, samples=samples)


def test_units_kinds_and_several_outputs(tmp_path: Path) -> None:
    listed = NODE.replace("node1 -- Linear(8, 8)", "node2 -- LSTM(  (a): Cell  )").replace(
        "512.0", "[512.0; 64.0; 64.0]"
    )
    graph = read(tmp_path, NODE + listed + "\tnode1 -- node2\n\tnode2 -- node3\n" + NODE.replace("node1", "node3"))
    first, second, _ = graph.ops
    assert graph.name == "tiny"
    assert (first.kind, second.kind) == ("Linear", "LSTM")
    assert first.measured is not None
    assert (first.measured.forward_seconds, first.measured.backward_seconds) == (0.003, 0.006)
    assert first.measured.samples == 4
    assert (first.parameter_bytes, first.output_bytes_per_sample, first.work.saved_bytes_per_sample) == (64, 128, 128)
    assert second.output_bytes_per_sample == 160
    assert [edge.bytes_per_sample for edge in graph.edges] == [128, 160]


def test_inputs_and_unread_items_are_dropped_and_their_neighbours_stay_joined(tmp_path: Path) -> None:
    kinds = {1: "Input0", 2: "Linear(1, 1)", 3: "__getitem__(0)", 4: "__getitem__(1)", 5: "Add", 6: "InputStub"}
    nodes = "".join(f"node{number} -- {kind} -- {COSTS}\n" for number, kind in kinds.items())
    edges = "".join(f"\tnode{pair[0]} -- node{pair[1]}\n" for pair in ("12", "23", "24", "35", "26", "65"))
    graph = read(tmp_path, nodes + edges)
    assert [op.name for op in graph.ops] == ["node2", "node3", "node5"]
    assert {(edge.source, edge.target, edge.bytes_per_sample) for edge in graph.edges} == {
        ("node2", "node3", 128),
        ("node3", "node5", 128),
        ("node2", "node5", 128),
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"tiny\.graph\.txt: the file is empty"),
        (NODE + "node2\n", "line 2: 'node2' is not a node"),
        (NODE + "\tnode1\n", "line 2: 'node1' is not an edge"),
        (NODE + "\tnode1 -- node9\n", "line 2: the edge names 'node9', which is not listed as a node"),
        (NODE + NODE, "line 2: node 'node1' is listed twice"),
        (
            NODE + NODE.replace("node1", "node2") + "\tnode1 -- node2\n\tnode2 -- node1\n",
            "the graph has a cycle: node1",
        ),
        (
            NODE.replace("parameter_size", "parameter_sise"),
            "unknown key 'parameter_sise'. Did you mean 'parameter_size'",
        ),
        (NODE.replace(", parameter_size=64.000", ""), "line 1: parameter_size is missing"),
        (NODE.replace("64.000", "nan"), "line 1, parameter_size: is nan, must be finite"),
        (NODE.replace("3.0", "-3.0"), "line 1, forward_compute_time: is -3.0, must be finite and not negative"),
        (NODE.replace("3.0", "fast"), "line 1, forward_compute_time: 'fast' is not a number"),
        (
            NODE.replace("512.0", "[1.0; 2.0"),
            r"line 1: 'activation_size=\[1.0; 2.0, parameter_siz' is not key=value",
        ),
        (NODE.replace(", parameter_size=", ", 7, "), "line 1: '7, 64.000' is not key=value"),
        ("node1 -- Input0 -- " + COSTS, "the graph has no operators"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence) as raised:
        read(tmp_path, text)
    assert "tiny.graph.txt" in str(raised.value)


def test_bad_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="samples: is 0, must be at least 1"):
        read(tmp_path, NODE, samples=0)


@pytest.mark.parametrize(("factor", "figure"), [("e-3", "9e-06 s"), ("e4", "90 s")])
def test_times_in_another_unit_give_a_warning_with_their_sum(tmp_path: Path, factor: str, figure: str) -> None:
    with pytest.warns(UserWarning, match=f"sum to {figure}. Are the times in another unit"):
        read(tmp_path, NODE.replace("3.0,", f"3.0{factor},").replace("6.0,", f"6.0{factor},"))


def parallel_widths(tree: Series) -> list[int]:
    return [len(part.branches) for part in tree.parts if isinstance(part, Parallel)]


@needs_data
@pytest.mark.parametrize(
    ("name", "ops", "seconds", "widths"),
    [
        ("vgg16", 40, 0.6725, []),
        ("resnet50", 176, 0.4434, [2, 2, 2, 2]),
        ("inception_v3", 325, 0.6890, [4, 4, 4, 3, 4, 4, 4, 4, 2]),
    ],
)
def test_published_profiles(name: str, ops: int, seconds: float, widths: list[int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = read_pipedream(DATA / f"{name}.graph.txt")
    measured = [op.measured for op in graph.ops if op.measured is not None]
    assert len(graph.ops) == len(measured) == ops
    assert sum(m.forward_seconds + m.backward_seconds for m in measured) == pytest.approx(seconds, abs=1e-4)
    tree = decompose(graph)
    assert parallel_widths(tree) == widths
    assert sorted(tree.ops) == sorted(graph.index)


@needs_data
def test_inception_v3_keeps_its_second_sink_and_the_splits_inside_branches() -> None:
    tree = decompose(read_pipedream(DATA / "inception_v3.graph.txt"))
    last = tree.parts[-1]
    assert isinstance(last, Parallel)
    auxiliary, main = last.branches
    assert auxiliary.ops[0] == "node230"
    assert main.parts[-1] == Leaf("node326")
    assert parallel_widths(main) == [3, 4, 4]
    inner = [branch for part in main.parts if isinstance(part, Parallel) for branch in part.branches]
    assert [width for branch in inner for width in parallel_widths(branch)] == [2, 2, 2, 2]


@needs_data
def test_gnmt_which_is_not_series_parallel_keeps_its_chain_and_parallel_parts() -> None:
    tree = decompose(read_pipedream(DATA / "gnmt.graph.txt", samples=1536))
    encoder, items, attention, *_ = tree.parts
    assert isinstance(encoder, Parallel)
    assert {branch.ops[-1] for branch in encoder.branches} == {"node19", "node21", "node20"}
    assert items.ops == ("node22", "node30", "node36", "node43") if isinstance(items, Parallel) else False
    assert attention == Leaf("node23")
    assert tree.ops[-1] == "node48"
