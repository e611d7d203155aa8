"""The package's description: README with links that lead somewhere from an index of packages."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import graphpipe
import graphpipe.errors

ROOT = Path(__file__).parents[1]
describe: Callable[[str, str | None], str] = runpy.run_path(str(ROOT / "setup.py"))["description"]


def test_links_of_the_description_are_absolute_or_names_of_files() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "[Limits](docs/limits.md)" in readme
    assert "Limits (`docs/limits.md`)" in describe(readme, None)
    text = describe(readme, "https://host.example/graphpipe/")
    assert "[Limits](https://host.example/graphpipe/blob/main/docs/limits.md)" in text
    targets = re.findall(r"\]\(([^)]*)\)", describe(readme, None) + text)
    assert targets
    assert all(re.match("https?://", each) for each in targets)
    assert describe("[a](https://a.example) [b](#b)", "https://c.example") == "[a](https://a.example) [b](#b)"


def test_every_error_is_public_and_documented() -> None:
    """`OutOfMemory` was neither: a program could only catch it by the name of an inner module."""
    errors = {name for name, each in vars(graphpipe.errors).items() if isinstance(each, type) and name != "object"}
    page = (ROOT / "docs" / "errors.md").read_text()
    assert errors == set(re.findall(r"::: graphpipe\.(\w+)", page))
    assert all(getattr(graphpipe, name) is vars(graphpipe.errors)[name] for name in errors)
