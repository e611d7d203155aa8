"""Checks a weight policy against the settings beside it, before anything is planned."""

from graphpipe.errors import InvalidInput
from graphpipe.planners.choose_schedule import AUTO
from graphpipe.plans.stage import Predictor, WeightPolicy, check_policy_names
from graphpipe.schedule.schedulers.registry import SCHEDULERS, find_scheduler


def check_weights(
    weights: WeightPolicy, predictor: Predictor, schedule: str | None, *, mixed_micro_batches: bool = False
) -> None:
    """Check a weight policy against the settings beside it.

    Raises:
        InvalidInput: an unknown policy or predictor, one without the other, or a setting that needs a flush.
    """
    check_policy_names(weights, predictor)
    if weights == "predict" and not predictor:
        what, remedy = "is missing, but weights is 'predict'", "Choose pipeoptim, spectrain or xpipe."
        raise InvalidInput(what, where="predictor", remedy=remedy)
    if weights != "predict" and predictor:
        what, remedy = f"is '{predictor}', but weights is '{weights}'", "Set weights to 'predict', or leave it out."
        raise InvalidInput(what, where="predictor", remedy=remedy)
    if weights == "flush":
        return
    if mixed_micro_batches:
        what = f"mixed micro-batch sizes are planned only for the weight policy 'flush', not for '{weights}'"
        raise InvalidInput(what, where="mixed_micro_batches", remedy="Leave out one of them.")
    if schedule is not None and (schedule == AUTO or not find_scheduler(schedule).endless):
        known = ", ".join(name for name, each in SCHEDULERS.items() if each.endless and not each.uses_bursts)
        what = f"schedule '{schedule}' cannot go on without a flush, as the weight policy '{weights}' needs"
        raise InvalidInput(what, where="schedule", remedy=f"Choose {known}, or leave it out.")


def check_inference_weights(weights: WeightPolicy) -> None:
    """Check that a plan for inference keeps the default weight policy.

    Raises:
        InvalidInput: it does not.
    """
    if weights != "flush":
        what = f"is '{weights}', but inference does not change weights"
        raise InvalidInput(what, where="weights", remedy="Leave it out.")
