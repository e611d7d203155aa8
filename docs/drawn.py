"""What is made while the site is built: pictures of planners and schedules, tables of files. A hook of mkdocs."""

import ast
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import graphpipe as gp
from graphpipe.cli.model_argument import find
from graphpipe.model.zoo.registry import zoo
from graphpipe.planners.registry import PLANNERS
from graphpipe.report.content.subject import Subject
from graphpipe.report.figures.static_figures import write_still
from graphpipe.schedule.schedulers.registry import SCHEDULERS

PACKAGE = Path(gp.__file__).parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add `pictures/planner-NAME.svg`, `pictures/schedule-NAME.svg` and the tutorial's to the files of the site."""
    module, inputs = zoo("two-tower-small", device="meta")
    graph = gp.capture(module, inputs)
    cluster = gp.Cluster.preset("local:4")
    costs = gp.estimate(graph, cluster)
    choices = [("planner", name) for name in PLANNERS] + [("schedule", name) for name in SCHEDULERS]
    for word, name in choices:
        if name == "kfkb":  # No planner chooses it: bursts are given by hand.
            whole = gp.plan(graph, costs, cluster, batch_size=32, schedule="gpipe")
            stages = tuple(replace(stage, burst=whole.micro_batches(at)) for at, stage in enumerate(whole.stages))
            plan = replace(whole, schedule=name, stages=stages)
        else:
            plan = gp.plan(graph, costs, cluster, batch_size=32, **{word: name})
        picture = f"pictures/{word}-{name}.svg"
        files.append(File.generated(config, picture, content=_drawn(plan)))
    files.append(File.generated(config, "pictures/tutorial.svg", content=_drawn(_tutorial())))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put a table of a room's files, with what each says of itself, where a page asks for it.

    Why a block is not run is for the tests alone: superfences knows no such option.
    """
    markdown = re.sub(r'^(```\w+) not-run="[^"]*"$', r"\1", markdown, flags=re.MULTILINE)
    return re.sub(r"<!-- (files|neighbours) of (\w+) -->", lambda found: _MADE[found[1]](found[2]), markdown)


def _files(room: str) -> str:
    rows = ["| file | what it is |", "| --- | --- |"]
    for path in sorted((PACKAGE / room).glob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        if path.name != "__init__.py":
            rows.append(f"| `{path.name}` | {said.splitlines()[0].replace('|', '/')} |")
    return "\n".join(rows)


def _neighbours(room: str) -> str:
    """Say what a room imports, and what imports it, as its files do."""
    imports = {other: _imported(other) for other in _rooms()}
    above = [name for name in _rooms() if name in imports[room]]
    below = [name for name in _rooms() if room in imports[name]]
    words = {"Imports": above, "Imported by": below}
    return "  \n".join(
        f"**{what}:** {', '.join(f'[`{name}`]({name}.md)' for name in names) or 'no other room'}."
        for what, names in words.items()
    )


def _rooms() -> list[str]:
    return sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def _imported(room: str) -> set[str]:
    trees = [ast.parse(path.read_text()) for path in (PACKAGE / room).rglob("*.py")]
    names = [node.module or "" for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[1] for name in names if name.startswith("graphpipe.")} - {room}


_MADE = {"files": _files, "neighbours": _neighbours}


def _tutorial() -> gp.Plan:
    graph = find("examples/digits.py:model").graph
    cluster = gp.Cluster.preset("summit:1x4")
    return gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=128)


def _drawn(plan: gp.Plan) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        write_still(Subject(title=plan.planner, plan=plan, predicted=gp.simulate(plan)), path)
        return path.read_text()
