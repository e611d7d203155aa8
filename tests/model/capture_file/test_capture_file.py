"""A captured model from a file is split and trained like the one that was written."""

import json
from pathlib import Path
from typing import Any

import pytest
from hard_models import MODELS
from stage_runs import assert_same_training, captured, make_plan, random_parts

from graphpipe.errors import InvalidInput
from graphpipe.model.capture_file.capture_file import load_capture, save_capture
from graphpipe.model.split.split import build_stages, split

LONG = ("encoder", "gpt", "two_tower", "dlrm", "sequence_first")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else []) for name in MODELS]
)
def test_a_loaded_capture_is_split_and_trained_like_the_written_one(name: str, tmp_path: Path) -> None:
    module, made = captured(name)
    assert save_capture(made, tmp_path / "capture.json")
    loaded = load_capture(tmp_path / "capture.json", made.graph)
    assert loaded is not None
    assert [str(node) for node in loaded.module_graph.graph.nodes] == [
        str(node) for node in made.module_graph.graph.nodes
    ]
    plan = make_plan(made.graph, random_parts(made.graph, 1))
    for one, other in zip(build_stages(module, plan, made), split(module, plan, loaded), strict=True):
        assert (one.receives, one.sends, one.parameter_names) == (other.receives, other.sends, other.parameter_names)
    assert_same_training(module, plan, split(module, plan, loaded), MODELS[name][1](5))


def test_a_capture_of_another_graph_is_not_used(tmp_path: Path) -> None:
    _, made = captured("encoder")
    _, other = captured("gpt")
    assert load_capture(tmp_path / "capture.json", made.graph) is None
    save_capture(made, tmp_path / "capture.json")
    assert load_capture(tmp_path / "capture.json", other.graph) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": {"function": "os.system"}}, "which a captured graph does not call"),
        ({"target": {"function": "torch.load"}}, "which a captured graph does not call"),
        ({"target": {"operator": "aten.no_such.default"}}, "which this torch does not have"),
        ({"op": "call_method", "target": "__reduce__"}, "which a captured graph does not call"),
        ({"args": {"tuple": [{"node": "later"}]}}, "which a captured graph does not hold"),
        ({"args": {"tuple": [{"dtype": "load"}]}}, "which a captured graph does not hold"),
        ({"name": "tokens"}, "two nodes are named"),
    ],
)
def test_a_file_that_names_other_functions_or_nodes_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    _, made = captured("encoder")
    save_capture(made, tmp_path / "capture.json")
    content = json.loads((tmp_path / "capture.json").read_text())
    node = next(node for node in content["nodes"] if node["op"] == "call_function")
    node |= change
    (tmp_path / "capture.json").write_text(json.dumps(content))
    with pytest.raises(InvalidInput, match=message):
        load_capture(tmp_path / "capture.json", made.graph)


def test_a_damaged_file_of_constants_is_refused(tmp_path: Path) -> None:
    _, made = captured("encoder")
    save_capture(made, tmp_path / "capture.json")
    (tmp_path / "capture.safetensors").write_bytes(b"x")
    with pytest.raises(InvalidInput, match=r"capture\.safetensors: cannot be read"):
        load_capture(tmp_path / "capture.json", made.graph)


def test_a_container_that_would_import_a_module_is_refused() -> None:
    from graphpipe.model.torch_private import spec_from_json

    with pytest.raises(ValueError, match="default dictionary"):
        spec_from_json('[1, {"type": "collections.defaultdict", "context": "os.system", "children_spec": []}]')
