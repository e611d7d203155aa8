"""The schedule of torch that comes nearest to a plan's."""

from graphpipe.exporters.stage_chain import StageChain, check_looped
from graphpipe.plans import Plan
from graphpipe.schedule.schedulers import gpipe, interleaved, one_f_one_b

_NAMES = {gpipe.NAME: "GPipe", one_f_one_b.NAME: "1F1B"}


def torch_schedule(plan: Plan, chain: StageChain) -> tuple[str, str]:
    """Return the schedule's name in torch, such as `1F1B` of the class `Schedule1F1B`, and the one in GraphPipe.

    Raises:
        InvalidInput: the stages lie on the devices as a V.
    """
    check_looped(chain, "torch has no 1F1B for it")
    if chain.rounds > 1:
        return "Interleaved1F1B", interleaved.NAME
    written = plan.schedule if plan.schedule in _NAMES else one_f_one_b.NAME
    return _NAMES[written], written
