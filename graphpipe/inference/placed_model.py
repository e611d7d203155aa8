"""The plan and the model that `graphpipe place` places: a plan file, or the whole model on one device."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.errors import InvalidInput
from graphpipe.inference.load_model import load_model
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture_cache.capture_cache import cached_capture, cached_capture_for
from graphpipe.model.inputs import Inputs
from graphpipe.planning.by_hand import HandStage
from graphpipe.planning.hand_plan import hand_plan
from graphpipe.plans import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedModel:
    """A plan for inference with its model."""

    plan: Plan
    module: nn.Module
    inputs: Inputs
    captured: Captured


def read_placed_model(word: str, plan_file: str | None, batch_size: int | None, cache: Path | None) -> PlacedModel:
    """Load a model, and read its plan or make one with a single stage.

    Args:
        word: the model, as the command line names it.
        plan_file: the plan; None makes one.
        batch_size: samples of the stage, if the plan is made.
        cache: the folder of captures; None keeps nothing.

    Raises:
        InvalidInput: the model or the plan cannot be used, or the plan trains.
    """
    model = load_model(word, ".", None)
    module, inputs = model.module, model.example_inputs
    if plan_file is not None:
        plan = Plan.load(plan_file)
        if plan.trains:
            remedy = "Make one with `graphpipe plan --inference`."
            raise InvalidInput("the plan trains", where=plan_file, remedy=remedy)
        captured = cached_capture_for(module, inputs, plan.graph, cache)
        return PlacedModel(plan=plan, module=module, inputs=inputs, captured=captured)
    assert batch_size is not None, "a plan or a number of samples"
    captured, cluster = cached_capture(module, inputs, cache, graph=model.graph), Cluster.preset("local:1")
    graph = captured.graph
    whole = HandStage(ops=graph.order, devices=(0,), micro_batch=batch_size)
    costs = estimate(graph, cluster)
    plan = hand_plan(graph, costs, cluster, batch_size=batch_size, stages=[whole], inference=True)
    return PlacedModel(plan=plan, module=module, inputs=inputs, captured=captured)
