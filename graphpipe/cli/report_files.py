"""Reads the files of `graphpipe report`: plans, traces, folders of runs, comparisons of planners."""

import json
from collections.abc import Container, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_json
from graphpipe.planning.hand_plan import under_policy
from graphpipe.plans import Plan
from graphpipe.plans.stage import Predictor, WeightPolicy
from graphpipe.report import Outcome, Summary
from graphpipe.report.content.subject import Subject
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace
from graphpipe.versions import PACKAGE, versions

if TYPE_CHECKING:
    from graphpipe.training.run_folder.metrics_log import StepMetrics

PROGRAMS = (PACKAGE, "torch", "numpy", "plotly", "matplotlib")


def read_subjects(
    paths: list[str], planners: str | None, weights: str | None = None, predictor: str = ""
) -> dict[str, Subject]:
    """Return the subjects of a report by name: one for each plan. Predicted steps that no file has are simulated.

    Args:
        paths: plans, traces and folders of runs. A trace belongs to the plan whose hash it records.
        planners: output of `graphpipe compare --json`.
        weights: show the stages of every plan under this weight policy; None: under the plan's own.
        predictor: of the policy `predict`.

    Raises:
        InvalidInput: a file cannot be used, or they do not belong together.
    """
    groups: dict[str, dict[str, Any]] = {}
    loose: list[tuple[str, str, Trace]] = []
    for path in paths:
        parts = list(_run_parts(Path(path)) if Path(path).is_dir() else _file_part(path))
        if parts[0][0] == "plan":
            known = {each["plan"].fingerprint for each in groups.values()}
            if parts[0][1].fingerprint in known and not Path(path).is_dir():
                raise InvalidInput("a second plan that equals another", where=path, remedy="Give it only once.")
            if weights or predictor:
                policy = cast("WeightPolicy", weights or parts[0][1].weights)
                parts[0] = "plan", under_policy(parts[0][1], policy, cast("Predictor", predictor))
            groups[_name(path, groups)] = dict(parts)
        else:
            loose.append((path, *parts[0]))
    for path, part, trace in loose:
        _add_trace(groups, path, part, trace)
    rows = tuple(_outcomes(planners)) if planners else ()
    return {name: _subject(name, parts, rows) for name, parts in groups.items()}


def read_subject(path: str) -> Subject:
    """Return the subject of a report about one plan, or about the run in one folder."""
    (subject,) = read_subjects([path], None).values()
    return subject


def _name(path: str, others: Container[str]) -> str:
    # Plans of one name in different folders get the names of their folders too.
    stem = Path(path).name.removesuffix(".json")
    return stem if stem not in others else path.removesuffix(".json")


def _add_trace(groups: dict[str, dict[str, Any]], path: str, part: str, trace: Trace) -> None:
    own = [parts for parts in groups.values() if parts["plan"] and parts["plan"].fingerprint == trace.plan_fingerprint]
    free = [parts for parts in own if part not in parts]
    if own and not free:
        raise InvalidInput(f"a second {part}", where=path, remedy="Give one prediction and one run of each plan.")
    if free:
        free[0][part] = trace
    elif len(groups) == 1:
        next(iter(groups.values())).setdefault(part, trace)  # `Subject` checks that they belong together
    elif not groups:
        groups[Path(path).name] = {"plan": None, part: trace}
    else:
        what = f"is of plan {trace.plan_fingerprint[:12]}, which is not among the given plans"
        raise InvalidInput(what, where=path, remedy="Give its plan too.")


def _subject(name: str, parts: dict[str, Any], planners: tuple[Outcome, ...]) -> Subject:
    plan: Plan | None = parts["plan"]
    title = f"{plan.graph.name} on {plan.cluster.name}" if plan else f"A step of {name}"
    subject = Subject(title=title, planners=planners, versions=versions(PROGRAMS), **parts)
    return replace(subject, predicted=prediction_beside(plan, subject.predicted, subject.measured)) if plan else subject


def prediction_beside(plan: Plan, predicted: Trace | None, measured: Trace | None) -> Trace:
    """Return a prediction of as many mini-batches as were measured, which differ where a plan does not flush.

    Args:
        plan: of the traces.
        predicted: what was predicted before; None: nothing.
        measured: what ran; None: nothing did.
    """
    if predicted is not None and (measured is None or predicted.batch_size == measured.batch_size):
        return predicted
    return simulate(plan) if measured is None else simulate(plan, mini_batches=measured.batch_size // plan.batch_size)


def _file_part(path: str) -> Iterator[tuple[str, Any]]:
    content = read_json(path)
    kind = content.get("graphpipe") if isinstance(content, dict) else None
    if kind == "plan":
        yield "plan", Plan.load(path)
    elif kind == "trace":
        trace = Trace.load(path)
        yield "predicted" if trace.source == "simulated" else "measured", trace
    else:
        what = f"is a graphpipe {kind} file" if kind else "is not a graphpipe file"
        raise InvalidInput(f"{what}, not a plan or a trace", where=path)


def _run_parts(directory: Path) -> Iterator[tuple[str, Any]]:
    """Yield the parts that a run's folder has. An interrupted run has no measured trace."""
    from graphpipe.training.run_folder.evaluations_log import read_evaluations
    from graphpipe.training.run_folder.run_folder import RunFolder

    folder = RunFolder(directory)
    if not folder.plan.exists():
        what = f"has no {folder.plan.name}"
        raise InvalidInput(what, where=str(folder), remedy="Give the folder of a training run.")
    yield "plan", Plan.load(folder.plan)
    for part, path in (("predicted", folder.predicted_trace), ("measured", folder.measured_trace)):
        if path.exists():
            yield part, Trace.load(path)
    if folder.metrics_log.exists():
        yield "steps", tuple(_steps(folder.metrics_log))
    if folder.evaluations.exists():
        yield "evaluations", tuple(read_evaluations(folder.evaluations))
    if folder.config.exists():
        settings = read_json(folder.config)
        yield (
            "settings",
            {name: value for name, value in settings.items() if name not in ("graphpipe", "schema_version")},
        )


def _steps(path: Path) -> "Iterator[StepMetrics]":
    from graphpipe.training.run_folder.metrics_log import StepMetrics

    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            yield from_body(StepMetrics, json.loads(line), f"{path}, line {number}")
        except json.JSONDecodeError as error:
            if number == len(lines):
                return  # The run was interrupted while it wrote this line.
            raise InvalidInput(f"not valid JSON: {error.msg}", where=f"{path}, line {number}") from None


def _outcomes(path: str) -> Iterator[Outcome]:
    content = read_json(path)
    rows: list[Any] | None = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise InvalidInput("has no rows", where=path, remedy="Write it with `graphpipe compare ... --json > FILE`.")
    names = {field.name for field in fields(Summary)}
    for number, row in enumerate(rows):
        where = f"{path}, row {number}"
        if not isinstance(row, dict):
            raise InvalidInput("is not an object", where=where)
        figures = {name: row[name] for name in names & row.keys()}
        summary = from_body(Summary, figures, where) if row.get("status") == "ok" else None
        outcome = {"planner": row.get("planner"), "status": row.get("status"), "reason": row.get("reason") or ""}
        yield replace(from_body(Outcome, outcome, where), summary=summary)
