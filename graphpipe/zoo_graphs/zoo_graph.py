"""The graph of a zoo model, read from a file of the package instead of captured from the model.

Importing torch and capturing a model takes ten times as long as planning for it. `make zoo-graphs` writes the files
again after a change of the zoo or of the capture, and `tests/zoo_graphs` compares each with a new capture.

One file serves every version of torch. Operators are named by the model's own submodules. The record of the backward
numbers operations within itself. A version that counts work differently runs the plan all the same (see `split`).
"""

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict

from graphpipe.files.json_body import from_body, to_body
from graphpipe.files.json_document import SCHEMA_VERSION, read_document
from graphpipe.files.text_file import write_text
from graphpipe.graph import Graph
from graphpipe.plans.backward_record import BackwardRecord
from graphpipe.versions import versions

DATA = Path(__file__).parent / "data"
_KIND = "zoo-graph"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooGraph:
    """What planning needs to know of a zoo model."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    torch: str
    """The version of torch that captured the model, without the build: 2.13.0."""
    graph: Graph
    backward: BackwardRecord

    def save(self, name: str, folder: Path = DATA) -> None:
        """Write the file of the model with this name, without blanks, because nobody edits it."""
        document = {"graphpipe": _KIND, "schema_version": SCHEMA_VERSION} | to_body(self)
        write_text(folder / f"{name}.json", json.dumps(document, separators=(",", ":")) + "\n")


def find_zoo_graph(name: str) -> ZooGraph | None:
    """Return the graph of a zoo model of its usual sizes.

    Args:
        name: such as `mmt`, `mmt-small` or `mmt:small`.

    Returns:
        None if the package has no graph of that name.
    """
    if (stem := name.replace(":small", "-small")) not in zoo_graph_names():
        return None
    path = DATA / f"{stem}.json"
    return read_document(path, _KIND, lambda body: from_body(ZooGraph, body, str(path)))


def zoo_graph_names() -> list[str]:
    """Return the names of all files."""
    return sorted(path.stem for path in DATA.glob("*.json"))


def torch_release() -> str:
    """Return the version of the installed torch without its build (`+cpu`). Nothing is imported."""
    return versions(["torch"])["torch"].partition("+")[0]
