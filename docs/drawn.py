"""What is made while the site is built: pictures of planners and schedules, tables of files. A hook of mkdocs."""

import ast
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import graphpipe as gp
from graphpipe.model.zoo.registry import zoo
from graphpipe.plan.registry import PLANNERS
from graphpipe.report.still import write_still
from graphpipe.report.subject import Subject
from graphpipe.schedule.registry import SCHEDULERS


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add `pictures/planner-NAME.svg` and `pictures/schedule-NAME.svg` to the files of the site."""
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
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put a table of a room's files, with what each says of itself, where a page asks for it."""
    return re.sub(r"<!-- files of (\w+) -->", lambda found: _files(found[1]), markdown)


def _files(room: str) -> str:
    rows = ["| file | what it is |", "| --- | --- |"]
    for path in sorted((Path(gp.__file__).parent / room).glob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        if path.name != "__init__.py":
            rows.append(f"| `{path.name}` | {said.splitlines()[0].replace('|', '/')} |")
    return "\n".join(rows)


def _drawn(plan: gp.Plan) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        write_still(Subject(title=plan.planner, plan=plan, predicted=gp.simulate(plan)), path)
        return path.read_text()
