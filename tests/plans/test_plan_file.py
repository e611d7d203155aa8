"""Plan files: round trip, versions, tampering, and plans written by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from problems import towers

from graphpipe.cluster.device import HOST_BANDWIDTH
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import digest
from graphpipe.planners.problem.options import Options
from graphpipe.planners.registry import PLANNERS
from graphpipe.planning.by_hand import HandPlan, HandStage, load_hand_plan, plan_by_hand
from graphpipe.plans.plan import Plan


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Plan, Path]:
    plan = PLANNERS["graphpipe"].plan(towers([3, 3], 4, 16), Options())
    path = tmp_path / "plan.json"
    plan.save(path)
    return plan, path


def test_a_saved_plan_loads_equal(saved: tuple[Plan, Path]) -> None:
    plan, path = saved
    assert Plan.load(path) == plan
    assert Plan.load(path).fingerprint == plan.fingerprint


@pytest.mark.parametrize(("old", "now"), [("keep", "none"), ("recompute", "full")])
def test_a_plan_of_an_earlier_version_has_a_memory_policy(saved: tuple[Plan, Path], old: str, now: str) -> None:
    body = json.loads(saved[1].read_text())
    for stage in body["plan"]["stages"]:
        del stage["recompute"]
        stage["memory_policy"] = old
    assert {stage.recompute for stage in Plan.load(edited(saved[1], **body)).stages} == {now}
    body["plan"]["stages"][0]["memory_policy"] = "forget"
    with pytest.raises(InvalidInput, match=r"stages\.0\.memory_policy"):
        Plan.load(edited(saved[1], **body))


def test_a_plan_of_an_earlier_version_has_a_backend(saved: tuple[Plan, Path]) -> None:
    plan, path = saved
    body = json.loads(path.read_text())
    for stage in body["plan"]["stages"]:
        stage["backend"] = "eager"
        assert stage.pop("state") == "whole"
        assert stage.pop("versions") == 1
        assert stage.pop("offload") == []
        assert stage.pop("offload_to") == []
        assert stage.pop("regions") == []
    assert body["plan"]["costs"].pop("loads") == []
    assert body["plan"]["cluster"].pop("duplex") is False
    assert body["plan"]["cluster"].pop("host_memory") == []
    for kind in body["plan"]["cluster"]["device_types"]:
        assert kind.pop("host_bandwidth_bytes_per_second") == HOST_BANDWIDTH
    for link in (body["plan"]["cluster"]["intra_node"], body["plan"]["cluster"]["inter_node"]):
        assert link.pop("processor_seconds_per_byte") == 0
    assert body["plan"].pop("trains") is True
    for op in body["plan"]["graph"]["ops"]:
        del op["splits"]
        assert op.pop("without_gradient") == []
        assert op["work"].pop("saved_bytes_per_forward") == 0
    for edge in body["plan"]["graph"]["edges"]:
        assert edge.pop("values") == []
    assert (body["plan"].pop("weights"), body["plan"].pop("predictor")) == ("flush", "")
    earlier = body["plan"] | {"prediction": None, "search_seconds": 0.0}
    assert Plan.load(edited(path, **body)) == plan
    assert digest(earlier) == plan.fingerprint
    body["plan"]["stages"][0]["backend"] = "compiled"
    with pytest.raises(InvalidInput, match=r"stages\.0\.backend"):
        Plan.load(edited(path, **body))


def test_recompute_is_saved_and_loaded(saved: tuple[Plan, Path]) -> None:
    first, *rest = saved[0].stages
    plan = replace(saved[0], stages=(replace(first, recompute=(first.ops[0],)), *rest))
    plan.save(saved[1])
    assert Plan.load(saved[1]) == plan
    body = json.loads(saved[1].read_text())
    body["plan"]["stages"][0]["recompute"] = "some"
    with pytest.raises(InvalidInput, match=r"field plan\.stages\.0\.recompute.*'none' or 'full' \(found 'some'\)"):
        Plan.load(edited(saved[1], **body))


def test_a_sharded_state_is_saved_and_loaded(saved: tuple[Plan, Path]) -> None:
    first, *rest = saved[0].stages
    plan = replace(saved[0], stages=(replace(first, state="optimizer"), *rest))
    assert plan.fingerprint != saved[0].fingerprint
    plan.save(saved[1])
    assert Plan.load(saved[1]) == plan
    body = json.loads(saved[1].read_text())
    body["plan"]["stages"][0]["state"] = "most"
    with pytest.raises(InvalidInput, match=r"field plan\.stages\.0\.state.*'whole', 'optimizer', 'all' or 'layers'"):
        Plan.load(edited(saved[1], **body))


def edited(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def test_another_schema_version_is_refused_with_both_versions(saved: tuple[Plan, Path]) -> None:
    with pytest.raises(InvalidInput, match="has schema version 7, this graphpipe reads version 1"):
        Plan.load(edited(saved[1], schema_version=7))


def test_another_kind_of_file_is_refused(saved: tuple[Plan, Path]) -> None:
    with pytest.raises(InvalidInput, match="is a graphpipe trace file, not a plan file"):
        Plan.load(edited(saved[1], graphpipe="trace"))


def test_a_changed_graph_breaks_the_hash(saved: tuple[Plan, Path]) -> None:
    body = json.loads(saved[1].read_text())
    body["plan"]["graph"]["ops"][0]["parameter_bytes"] = 1.0
    with pytest.raises(InvalidInput, match="the graph in the file has hash"):
        Plan.load(edited(saved[1], **body))


def test_a_file_without_a_newer_field_loads(saved: tuple[Plan, Path]) -> None:
    # The hash must be of the file's text. Reading adds newer fields, which would make every older plan look changed.
    body = json.loads(saved[1].read_text())
    for link in (body["plan"]["cluster"]["intra_node"], body["plan"]["cluster"]["inter_node"]):
        assert link.pop("processor_seconds") == link.pop("processor_seconds_per_byte") == 0
    assert body["plan"]["cluster"].pop("duplex") is False
    assert body["plan"]["cluster"].pop("host_memory") == []
    for kind in body["plan"]["cluster"]["device_types"]:
        assert kind.pop("host_bandwidth_bytes_per_second") == HOST_BANDWIDTH
    body["cluster_sha256"] = digest(body["plan"]["cluster"])
    assert Plan.load(edited(saved[1], **body)) == saved[0]


def test_an_unsound_stage_is_refused(saved: tuple[Plan, Path]) -> None:
    body = json.loads(saved[1].read_text())
    body["plan"]["stages"][0]["micro_batch"] = 17
    with pytest.raises(InvalidInput, match="micro_batch is 17, must be 1 to batch 16"):
        Plan.load(edited(saved[1], **body))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("{", "not valid JSON"),
        ("[]", "not a graphpipe plan file"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"graphpipe": "plan", "schema_version": 1}', "Field required"),
    ],
)
def test_malformed_files_get_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        Plan.load(path)


def test_a_hand_plan_from_json(tmp_path: Path) -> None:
    path = tmp_path / "stages.json"
    stages = [
        {"name": "left", "ops": ["b0.*"], "devices": [1], "micro_batch": 4},
        {"name": "rest", "ops": ["b1.*", "join"], "devices": [0, 2], "micro_batch": 8},
    ]
    path.write_text(json.dumps({"graphpipe": "stages", "schema_version": 1, "stages": stages}))
    plan = plan_by_hand(towers([2, 2], 4, 16), load_hand_plan(path))
    assert [(stage.name, stage.devices, stage.in_flight) for stage in plan.stages] == [
        ("left", (1,), 16),
        ("rest", (0, 2), 8),
    ]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((HandStage(name="a", ops=("zz*",), devices=(0,), micro_batch=2),), r"'zz\*' matches no operator"),
        ((HandStage(name="a", ops=("b0.*",), devices=(0,), micro_batch=2),), "operator 'join' is in 0 stages"),
        ((HandStage(name="a", ops=("*",), devices=(0,), micro_batch=0),), "micro_batch is 0, must be 1 to batch 4"),
        ((HandStage(name="a", ops=("*",), devices=(0,), micro_batch=2, burst=0),), "burst is 0"),
        ((HandStage(name="a", ops=("*",), devices=(), micro_batch=2),), "has no device"),
    ],
)
def test_bad_hand_plans_get_one_sentence(stages: tuple[HandStage, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        plan_by_hand(towers([2], 2, 4), HandPlan(stages=stages))
