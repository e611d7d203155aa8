"""The program of a stage on the backends that its plan names."""

from collections.abc import MutableMapping

from torch import nn

from graphpipe.model.backends.placed_program import PlacedProgram, PlacedRegion
from graphpipe.model.backends.region_programs import in_order, region_program
from graphpipe.model.backends.registry import find_backend
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture.op_splits.split_nodes import split_like
from graphpipe.model.split.split import capture_for, submodules_for
from graphpipe.model.stage_program import StageProgram
from graphpipe.plans import Plan
from graphpipe.plans.stage import BackendRegion

Regions = MutableMapping[BackendRegion, PlacedRegion]


def placed_program(
    module: nn.Module,
    plan: Plan,
    stage: int,
    whole: StageProgram,
    captured: Captured | None = None,
    known: Regions | None = None,
) -> PlacedProgram:
    """Return the program of a stage that runs its regions. Each is compiled before its first micro-batch.

    Args:
        module: the user's model.
        plan: for inference.
        stage: its number; it has regions.
        whole: the program of the stage without backends.
        captured: the model as it was captured for the plan, if at hand.
        known: regions of this stage that were made before, with what was compiled. It gets those that are made here.

    Raises:
        InvalidInput: a backend is unknown or missing here, or the regions cannot run one after the other.
    """
    here = plan.stages[stage]
    for region in here.regions:
        find_backend(region.backend)
    stage_capture = split_like(captured, plan.graph) if captured is not None else capture_for(module, plan.graph)
    called = submodules_for(module, plan.graph)
    known = {} if known is None else known
    regions = in_order(plan.graph, here.regions)
    for region in regions:
        if region not in known:
            program = region_program(called, stage_capture, region.ops)
            known[region] = PlacedRegion(
                program=program, backend=region.backend, samples=here.micro_batch // here.degree
            )
    return PlacedProgram(whole=whole, regions=tuple(known[region] for region in regions))
