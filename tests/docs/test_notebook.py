"""The tutorial's notebook runs from top to bottom, and is committed with outputs (tests/support/write_notebook.py)."""

import os
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from write_notebook import NOTEBOOK, run


def shown(notebook: NotebookNode) -> list[list[str]]:
    """Return the kinds of output of each code cell."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return [sorted({kind for output in cell.outputs for kind in output.get("data", ["text"])}) for cell in cells]


def test_the_notebook_is_saved_with_its_outputs() -> None:
    saved = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(saved)
    assert sum("image/svg+xml" in kinds for kinds in shown(saved)) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")  # The kernel starts in a fork too.
def test_the_notebook_runs_and_shows_what_it_was_saved_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    saved = nbformat.read(NOTEBOOK, as_version=4)
    done = run(tmp_path)
    assert shown(saved) == shown(done)
    assert sum("image/svg+xml" in kinds for kinds in shown(done)) == 2
    assert (tmp_path / "report.html").stat().st_size > 10_000
