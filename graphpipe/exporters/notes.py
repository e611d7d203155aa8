"""What another tool does differently from a plan."""

from collections.abc import Mapping

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan


def check_synchronous(plan: Plan) -> None:
    """Check that the plan flushes after every mini-batch.

    Raises:
        InvalidInput: it does not.
    """
    if plan.weights != "flush":
        what = f"the plan trains with weight policy '{plan.weights}', and the format holds only synchronous training"
        raise InvalidInput(what, where="plan, weights", remedy="Plan again with `--weights flush`.")


def notes_of(plan: Plan, written_schedule: str) -> tuple[str, ...]:
    """Return what the plan says and the format does not hold, one sentence each.

    Args:
        plan: the plan.
        written_schedule: the schedule that the other tool will follow, as GraphPipe names it.
    """
    notes: list[str] = []
    if plan.schedule != written_schedule:
        notes.append(
            f"The plan follows {plan.schedule}, which the other tool does not have, so {written_schedule} was written. "
            f"Its step may be longer than predicted."
        )
    recomputed = [stage.name for stage in plan.stages if stage.recompute != "none"]
    if recomputed:
        notes.append(f"Turn on recomputation for stages {', '.join(recomputed)}: the plan needs it to fit.")
    sharded: Mapping[str, str] = {stage.name: stage.state for stage in plan.stages if stage.state != "whole"}
    if sharded:
        notes.append(
            f"Shard the state of stages {', '.join(sharded)} as the plan does: {next(iter(sharded.values()))}."
        )
    return tuple(notes)
