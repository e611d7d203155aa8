"""The pictures of the planners' and schedules' pages, drawn while the site is built: a hook of mkdocs."""

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


def _drawn(plan: gp.Plan) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        write_still(Subject(title=plan.planner, plan=plan, predicted=gp.simulate(plan)), path)
        return path.read_text()
