"""A known survivor quotes a line of its part. One whose line was rewritten says nothing: twelve once did so."""

import tomllib

import pytest
from mutate import KNOWN, PARTS, ROOT


@pytest.mark.parametrize("part", PARTS)
def test_known_survivors_quote_lines_that_stand(part: str) -> None:
    modules = [ROOT / "graphpipe" / module for module in PARTS[part].modules]
    lines = {line.strip() for module in modules for line in module.read_text(encoding="utf-8").splitlines()}
    known = tomllib.loads(KNOWN.read_text(encoding="utf-8")).get(part, [])
    quoted = [line[1:].strip() for entry in known for line in entry["change"].splitlines() if line.startswith("-")]
    assert [line for line in quoted if line not in lines] == []
