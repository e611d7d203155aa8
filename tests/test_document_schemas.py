"""The JSON Schemas agree with what GraphPipe writes and reads."""

import json
from pathlib import Path

import pytest
from builders import Part, chain, make_plan
from jsonschema import Draft202012Validator, ValidationError

import graphpipe as gp
from graphpipe.document_schemas import document_schema, schema_kinds
from graphpipe.files.json_document import PUBLISHED
from graphpipe.planning.by_hand import load_hand_plan
from graphpipe.training.config.from_toml import resolve_config
from graphpipe.training.config.settings import TrainConfig

STAGES = {
    "$schema": "urn:graphpipe:schema:stages:1",
    "graphpipe": "stages",
    "schema_version": 1,
    "stages": [{"ops": ["s0", "s1"], "devices": [0], "micro_batch": 2}],
}
READERS = {
    "plan": gp.Plan.load,
    "graph": gp.Graph.load,
    "costs": gp.CostTable.load,
    "trace": gp.Trace.load,
    "stages": load_hand_plan,
    "train": TrainConfig.load,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a document of each kind."""
    folder = tmp_path_factory.mktemp("documents")
    plan = make_plan([Part(micro_batch=2), Part(micro_batch=2)], chain(2, 1.0))
    plan.save(folder / "plan")
    plan.graph.save(folder / "graph")
    plan.costs.save(folder / "costs")
    gp.simulate(plan).save(folder / "trace")
    resolve_config("examples/digits.toml").save(folder / "train")
    (folder / "stages").write_text(json.dumps(STAGES))
    return folder


@pytest.mark.parametrize("kind", sorted(PUBLISHED))
def test_what_is_written_fits_its_schema_and_is_read(kind: str, folder: Path) -> None:
    schema = document_schema(kind)
    Draft202012Validator.check_schema(schema)
    content = json.loads((folder / kind).read_text())
    assert content["$schema"] == schema["$id"] == f"urn:graphpipe:schema:{kind}:1"
    Draft202012Validator(schema).validate(content)
    READERS[kind](folder / kind)


@pytest.mark.parametrize("kind", sorted(PUBLISHED))
def test_an_unknown_key_and_another_version_do_not_fit(kind: str, folder: Path) -> None:
    validator = Draft202012Validator(document_schema(kind))
    content = json.loads((folder / kind).read_text())
    for wrong in ({"colour": "red"}, {"schema_version": 2}, {"graphpipe": "other"}):
        with pytest.raises(ValidationError):
            validator.validate(content | wrong)


def test_every_published_kind_has_a_schema() -> None:
    assert set(schema_kinds()) == PUBLISHED
