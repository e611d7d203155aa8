"""Backwards that a plan splits: how they were computed, and a warning of those that ran whole."""

from collections.abc import Mapping

from graphpipe.run.worker.worker import StageWorker
from graphpipe.user_frames import warn_user


def backwards_of(worker: StageWorker) -> dict[str, str]:
    """Return how a rank computed the backward of each stage, as `Pipeline.backwards`."""
    reasons = {leader.stage_name: leader.whole for leader in worker.leaders()}
    return {name: f"whole: {why}" if why else "split" for name, why in reasons.items() if why is not None}


def warn_of_whole_backwards(backwards: Mapping[str, str]) -> None:
    """Warn of backwards that the plan splits and the runtime does whole.

    Args:
        backwards: how each was done, by stage.
    """
    for name, how in backwards.items():
        if how != "split":  # then the prediction is of another schedule
            warn_user(
                f"the plan splits the backward of stage '{name}', which was done {how}. "
                "gp.choose_backwards(plan, model) finds such stages beforehand, and predicts with them"
            )
