"""The package: its description has links that lead somewhere, and it brings the files of the demo's training."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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


def test_an_installed_package_has_the_files_of_the_examples(tmp_path: Path) -> None:
    # `graphpipe demo` of a wheel ended with "examples/digits.toml: is not in this folder".
    library, empty = tmp_path / "library", tmp_path / "empty"
    empty.mkdir()
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(library)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    for words, pattern, written in (
        (["demo", "--files"], "digits*.*", "examples"),
        (["init", "own"], "project/*.*", "own"),
    ):
        verb = [sys.executable, "-P", "-m", "graphpipe", *words]
        done = subprocess.run(verb, cwd=empty, env=os.environ | {"PYTHONPATH": str(library)}, timeout=120)
        assert done.returncode == 0
        files = {path.name: path.read_bytes() for path in (ROOT / "examples").glob(pattern)}
        assert len(files) >= 3
        assert {path.name: path.read_bytes() for path in (empty / written).iterdir()} == files


@pytest.mark.parametrize(
    ("hidden", "sentence"),
    [
        (
            "m.version = lambda name: '2.9.1+cu126'",
            "graphpipe needs torch 2.11 or newer, and 2.9.1+cu126 is installed: pip install 'torch>=2.11'.",
        ),
        (
            "u.find_spec = lambda name: None if name == 'fcntl' else 1; sys.platform = 'win32'",
            "graphpipe runs on Linux and macOS, and this Python for win32 has no module fcntl: on Windows, use the "
            "Windows Subsystem for Linux (WSL).",
        ),
    ],
)
@pytest.mark.parametrize("program", ["/usr/bin/graphpipe", "-m", "mine.py"])
def test_what_cannot_work_is_refused_at_import_in_a_sentence(hidden: str, sentence: str, program: str) -> None:
    # Ranks with too old a torch ended in a TypeError that was called a bug; on Windows no module named fcntl was found.
    code = f"import importlib.metadata as m, importlib.util as u, sys; {hidden}; sys.argv[0] = {program!r}"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import graphpipe"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    said = f"ImportError: {sentence}" if program == "mine.py" else f"graphpipe: error: {sentence}"
    assert done.stderr.splitlines()[-1] == said
    assert (len(done.stderr.splitlines()) > 1) == (program == "mine.py")
