"""The plan of an inference job: read from a file, or made from a model and a cluster."""

from dataclasses import dataclass
from pathlib import Path

from graphpipe.cluster import Cluster
from graphpipe.costs import CostModel, CostTable
from graphpipe.costs.analytic import estimate
from graphpipe.costs.check_units import warn_of_units
from graphpipe.errors import InvalidInput
from graphpipe.files.cache_folder import cache_folder
from graphpipe.inference.answer_files import check_ending
from graphpipe.inference.answer_rank import title
from graphpipe.inference.job import InferenceJob
from graphpipe.inference.journal import count_answers
from graphpipe.inference.load_model import load_model
from graphpipe.inference.read_requests import check_requests
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture_cache.capture_cache import cached_capture, cached_capture_for
from graphpipe.model.split.split import build_stages
from graphpipe.planners.registry import DEFAULT, find_planner
from graphpipe.planning.plan import plan
from graphpipe.plans import Plan
from graphpipe.waiting import waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSource:
    """Where the plan of a job comes from: a file, or a planner."""

    file: str | None = None
    cluster: str = ""
    """The cluster of a plan that is made. The fields below are of such a plan too."""
    batch_size: int = 0
    planner: str = DEFAULT
    costs: str | None = None
    """A file of measured costs; None estimates them."""
    cache: bool = True
    """Whether captures of earlier commands are used, and new ones kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedJob:
    """A job that ranks can start."""

    plan: Plan
    captured: Captured


def prepare(job: InferenceJob, source: PlanSource, *, resume: bool) -> PreparedJob:
    """Load the model, read or make the plan, and check what can be checked before ranks start.

    Args:
        job: what to answer.
        source: of the plan.
        resume: continue a journal that is there, instead of refusing it.

    Raises:
        Infeasible: no plan fits in memory.
        InvalidInput: the plan trains or is of another model, or the requests or the answers' place cannot be used.
    """
    check_ending(job.output_path)
    with waiting("loading the model"):
        model = load_model(job.model, job.folder, job.weights)
        module, inputs = model.module, model.example_inputs
    cache = cache_folder() if source.cache else None
    if source.file is not None:
        plan = Plan.load(source.file)
        if plan.trains:
            remedy = "Make one with `graphpipe plan --inference`."
            raise InvalidInput("the plan trains", where=source.file, remedy=remedy)
        warn_of_units(plan.cost_model, source.file)
        captured = cached_capture_for(module, inputs, plan.graph, cache)
        build_stages(module, plan, captured)  # refuses a plan that does not fit the model
    else:
        with waiting("capturing the model"):
            captured = cached_capture(module, inputs, cache, graph=model.graph)
        plan = _planned(job, source, captured)
    check_requests(job.data, Path(job.folder), plan.graph.inputs)
    done = count_answers(job.journal_path, title(job, plan))
    if job.journal_path.exists() and not resume:
        what = f"has {done} answers of a command that did not end"
        raise InvalidInput(what, where=str(job.journal_path), remedy="--resume answers the rest, or remove the file.")
    return PreparedJob(plan=plan, captured=captured)


def replan(plan_before: Plan, cluster: Cluster, job: InferenceJob) -> Plan:
    """Return a plan for other devices, with the costs of an earlier plan.

    Raises:
        Infeasible: no plan fits in memory.
    """
    known = plan_before.planner if _infers(plan_before.planner) else DEFAULT
    return plan(
        plan_before.graph,
        plan_before.costs,
        cluster,
        batch_size=plan_before.batch_size,
        planner=known,
        inference=True,
        objective=job.objective,
        tensor="auto" if plan_before.shares_replicas else 1,
    )


def _infers(planner: str) -> bool:
    try:
        return find_planner(planner).infers
    except InvalidInput:  # such as the name that plans by hand have
        return False


def _planned(job: InferenceJob, source: PlanSource, captured: Captured) -> Plan:
    cluster, graph = Cluster.resolve(source.cluster), captured.graph
    costs = CostTable.load(source.costs) if source.costs else estimate(graph, cluster)
    if source.costs:
        warn_of_units(CostModel(graph, costs, cluster), source.costs)
    return plan(
        graph,
        costs,
        cluster,
        batch_size=source.batch_size,
        planner=source.planner,
        inference=True,
        objective=job.objective,
    )
