"""Runs `examples/tutorial.ipynb` in an empty folder and saves it with its outputs: after each change of it."""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
from docs_shell import prepare
from forked_programs import ROOT
from nbclient import NotebookClient

NOTEBOOK = ROOT / "examples" / "tutorial.ipynb"


def run(folder: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of its run in an empty folder."""
    os.environ.update(prepare(folder))  # The kernel inherits them.
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    where = {"metadata": {"path": str(folder)}}
    return NotebookClient(notebook, timeout=200, record_timing=False, coalesce_streams=True, resources=where).execute()


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        nbformat.write(run(Path(name)), NOTEBOOK)
