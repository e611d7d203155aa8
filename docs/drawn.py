"""A hook of mkdocs that draws pictures of planners, schedules and weight policies, and lists the files of each room."""

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import graphpipe as gp
from graphpipe.cli.model_argument import read_model_argument
from graphpipe.costs.op_cost import Curve, OpCost
from graphpipe.graph import Edge, Op
from graphpipe.model.zoo.registry import zoo
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import PLANNERS
from graphpipe.planning.by_hand import HandPlan, HandStage, plan_by_hand
from graphpipe.planning.choose_schedule import AS_PLANNED
from graphpipe.plans.stage import WeightPolicy
from graphpipe.report.content.subject import Subject
from graphpipe.report.figures.static_figures import write_still
from graphpipe.schedule.schedulers.forward_only import NAME as FORWARD_ONLY
from graphpipe.schedule.schedulers.registry import SCHEDULERS
from graphpipe.zoo_graphs.zoo_graph import find_zoo_graph

PACKAGE = Path(gp.__file__).parent
DOCS = Path(__file__).parent


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add a page for each planner to the navigation, after their overview."""
    pages = [{name: f"planners/{name}.md"} for name in PLANNERS]
    planners = _section(config.nav or [], "Planners")
    assert planners is not None, "the navigation lacks the planners"
    planners.extend(pages)
    return config


def _section(entries: list[Any], title: str) -> list[Any] | None:
    """Return the pages of a section of the navigation, which may be inside another one."""
    for entry in entries:
        for name, pages in entry.items() if isinstance(entry, dict) else ():
            if name == title:
                return pages
            if isinstance(pages, list) and (found := _section(pages, title)) is not None:
                return found
    return None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a picture of each planner, each schedule, each weight policy and the tutorial's plan to the site."""
    graph = _graph("two-tower-small")
    cluster = gp.Cluster.preset("local:4")
    costs = gp.estimate(graph, cluster)
    choices = [("planner", name) for name in PLANNERS] + [("schedule", name) for name in SCHEDULERS]
    for word, name in choices:
        if name == "kfkb":  # Planners cannot be asked for it, because only plans by hand set bursts.
            whole = gp.plan(graph, costs, cluster, batch_size=32, schedule="gpipe")
            stages = tuple(replace(stage, burst=whole.micro_batches(at)) for at, stage in enumerate(whole.stages))
            plan = replace(whole, schedule=name, stages=stages)
        elif name in ("interleaved", "dualpipe-v"):  # Devices that share cores host one stage each.
            plan = _two_stages_on_each_device(name)
        else:
            inference = name in ("edgepipe", "forward-only")
            chosen = {} if name == "forward-only" else {word: name}
            plan = gp.plan(graph, costs, cluster, batch_size=32, inference=inference, **chosen)
        picture = f"pictures/{word}-{name}.svg"
        files.append(File.generated(config, picture, content=_drawn(plan)))
    for policy in get_args(WeightPolicy):
        if policy != "flush":
            files.append(
                File.generated(config, f"pictures/weights-{policy}.svg", content=_drawn(_without_flush(policy)))
            )
    files.append(File.generated(config, "pictures/tutorial.svg", content=_drawn(_tutorial())))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fill in the tables that a page asks for: planners, files of a room, neighbours of a room.

    The option `not-run` of a code block is removed. Only the tests read it, and superfences would refuse it.
    """
    markdown = re.sub(r'^(```\w+) not-run="[^"]*"$', r"\1", markdown, flags=re.MULTILINE)
    markdown = markdown.replace("<!-- planners -->", _planners())
    return re.sub(r"<!-- (files|neighbours) of ([\w-]+) -->", lambda found: _MADE[found[1]](found[2]), markdown)


def _planners() -> str:
    """Return a table of the planners: their traits, and the first sentence of their page."""
    rows = ["| planner | its stages form | recomputes | default schedule | |", "| --- | --- | --- | --- | --- |"]
    for name, planner in PLANNERS.items():
        said = (DOCS / "planners" / f"{name}.md").read_text().split("\n\n")[1].replace("\n", " ").split(". ")[0]
        recomputes = "where memory is short" if planner.recomputes else "never"
        chosen = planner.own_schedule if planner.default_schedule == AS_PLANNED else planner.default_schedule
        schedule = chosen if planner.trains else FORWARD_ONLY
        traits = f"a {planner.pipeline} | {recomputes} | `{schedule}`"
        rows.append(f"| [`{name}`]({name}.md) | {traits} | {said.removesuffix('.')}. |")
    return "\n".join(rows)


def _files(room: str) -> str:
    """List the files of a room, then those of each of its sub-rooms, with the first line of their docstrings."""
    folders = sorted(path.parent for path in (PACKAGE / room).rglob("__init__.py"))
    return "\n\n".join(table for folder in folders if (table := _files_in(folder)))


def _files_in(folder: Path) -> str:
    name = folder.relative_to(PACKAGE).as_posix()
    title = f"### {name}\n\n{_first_line(folder / '__init__.py')}\n\n" if "/" in name else ""
    files = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    rows = [f"| `{path.name}` | {_first_line(path).replace('|', '/')} |" for path in files]
    return title + "\n".join(["| file | what it is |", "| --- | --- |", *rows]) if rows else ""


def _first_line(path: Path) -> str:
    docstring = re.match(r'"""(.+?)(?:"""|\n)', path.read_text())
    return docstring[1] if docstring else ""


def _neighbours(room: str) -> str:
    """List the rooms that a room imports, and the rooms that import it."""
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


@cache
def _imported(room: str) -> set[str]:
    # To parse all files takes longer than to draw all pictures.
    texts = (path.read_text() for path in (PACKAGE / room).rglob("*.py"))
    return {name for text in texts for name in re.findall(r"^\s*from graphpipe\.(\w+)", text, re.MULTILINE)} - {room}


_MADE = {"files": _files, "neighbours": _neighbours}


def _graph(name: str) -> gp.Graph:
    found = find_zoo_graph(name)  # takes a second less than to capture it
    return found.graph if found else gp.capture(*zoo(name, device="meta"))


def _two_stages_on_each_device(schedule: str) -> gp.Plan:
    graph = _graph("gpt-small")
    cluster = gp.Cluster.preset("local:2")
    devices = (0, 1, 0, 1) if schedule == "interleaved" else (0, 1, 1, 0)
    stages = [
        HandStage(ops=(f"layers.{layer}.*", *(["head*"] if layer == 3 else [])), devices=(device,), micro_batch=2)
        for layer, device in enumerate(devices)
    ]
    hand = HandPlan(stages=tuple(stages), schedule=schedule)
    return plan_by_hand(Problem(graph, gp.estimate(graph, cluster), cluster, 16), hand)


def _without_flush(policy: WeightPolicy) -> gp.Plan:
    """Return four equal stages, with two micro-batches in a mini-batch."""
    names = [f"layer{number}" for number in range(4)]
    ops = tuple(Op(name=name, parameter_bytes=4e6, output_bytes_per_sample=4e3) for name in names)
    edges = tuple(Edge(source=one, target=two, bytes_per_sample=4e3) for one, two in pairwise(names))
    graph = gp.Graph(name=f"weights {policy}", ops=ops, edges=edges)
    cluster, each = gp.Cluster.preset("summit:1x4"), Curve(lines=((0.0, 1e-3),))
    rows = (
        OpCost(op=name, device_type="v100", forward=each, input_gradient=each, weight_gradient=each, source="imported")
        for name in names
    )
    costs = gp.CostTable(graph_fingerprint=graph.fingerprint, rows=tuple(rows))
    micro_batch = 1 if policy == "double-buffer" else 2
    stages = [gp.HandStage(ops=(name,), devices=(at,), micro_batch=micro_batch) for at, name in enumerate(names)]
    predictor = "pipeoptim" if policy == "predict" else ""
    return gp.hand_plan(graph, costs, cluster, batch_size=4, stages=stages, weights=policy, predictor=predictor)


def _tutorial() -> gp.Plan:
    graph = read_model_argument("examples/digits.py:model").graph
    cluster = gp.Cluster.preset("summit:1x4")
    return gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=128, stages_per_device=1)


def _drawn(plan: gp.Plan) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        write_still(Subject(title=plan.planner, plan=plan, predicted=gp.simulate(plan)), path)
        return path.read_text()
