"""JSON documents are saved completely and load as an equal value. Damaged ones are refused with a clear message."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import ConfigDict

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import fingerprint, from_body
from graphpipe.files.json_document import read_document, read_json, write_document
from graphpipe.files.text_file import write_text


@dataclass(frozen=True, kw_only=True)
class Point:
    __pydantic_config__ = ConfigDict(extra="forbid")

    x: float
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.x < 0:
            raise InvalidInput(f"is {self.x}, must not be negative", where="x", remedy="Use 0.")


def load(path: Path) -> Point:
    return read_document(path, "point", lambda body: from_body(Point, body, str(path)))


def test_a_saved_value_loads_as_an_equal_value(tmp_path: Path) -> None:
    point = Point(x=0.1, names=("ü", "b"))
    write_document(tmp_path / "deep" / "point.json", "point", point)
    assert load(tmp_path / "deep" / "point.json") == point
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["point.json"]


def test_equal_values_have_equal_fingerprints() -> None:
    assert fingerprint(Point(x=1.0)) == fingerprint(Point(x=1.0)) != fingerprint(Point(x=2.0))


HEAD = '{"graphpipe": "point", "schema_version": 1, '


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "the file is empty"),
        ('{"graphpipe": ', r"not valid JSON: .* \(line 1, column 15\)"),
        ("[1]", "not a graphpipe point file"),
        ('{"x": 1}', "not a graphpipe point file"),
        ('{"graphpipe": "plan", "schema_version": 1}', "is a graphpipe plan file, not a point file"),
        ('{"graphpipe": "point", "schema_version": 99}', "has schema version 99, this graphpipe reads version 1"),
        (HEAD + '"x": NaN}', "NaN is not a JSON number"),
        (HEAD + '"x": ' + "9" * 5000 + "}", "holds a value that this program does not read"),
        ("[" * 100_000, "holds a value that this program does not read"),
        (HEAD + '"x": "much"}', r"field x: .* \(found 'much'\)"),
        (HEAD + '"y": 2, "x": 1}', "field y"),
        (HEAD + '"names": []}', "field x"),
        (HEAD + '"x": -1}', "x: is -1.0, must not be negative. Use 0."),
    ],
)
def test_a_damaged_file_is_refused_with_its_name_and_the_reason(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "point.json"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=sentence) as raised:
        load(path)
    assert str(path) in str(raised.value)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="not a text file"):
        read_json(tmp_path / "binary")
    with pytest.raises(InvalidInput, match="cannot read: No such file"):
        read_json(tmp_path / "missing")
    with pytest.raises(InvalidInput, match="cannot read: Is a directory"):
        read_json(tmp_path)


def test_a_failed_write_is_named_and_does_not_leave_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(InvalidInput, match="cannot write"):
        write_text(tmp_path / "file" / "inside.json", "new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInput, match="cannot write"):
        write_text(tmp_path / "folder", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_document_holds_its_kind_and_schema_version(tmp_path: Path) -> None:
    write_document(tmp_path / "point.json", "point", Point(x=1))
    head = json.loads((tmp_path / "point.json").read_text())
    assert (head["graphpipe"], head["schema_version"]) == ("point", 1)
