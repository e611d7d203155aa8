"""The tutorial's notebook runs from top to bottom, and is committed without outputs."""

from pathlib import Path

import nbformat
import pytest
from docs_shell import prepare
from forked_programs import ROOT
from nbclient import NotebookClient

NOTEBOOK = ROOT / "examples" / "tutorial.ipynb"


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in prepare(tmp_path).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    done = NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    pictures = [output for cell in done.cells for output in cell.get("outputs", []) if "data" in output]
    assert sum("image/svg+xml" in output.data for output in pictures) == 2
    assert (tmp_path / "report.html").stat().st_size > 10_000
