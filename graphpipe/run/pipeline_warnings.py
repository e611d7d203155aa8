"""What a pipeline tells its user about a plan that it runs in another way than one may expect."""

from collections.abc import Mapping

from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.user_frames import warn_user


def warn_of_idle_ranks(placement: RankPlacement, size: int) -> None:
    """Warn of ranks without a stage, of `size` ranks."""
    if idle := placement.idle:
        numbers = ", ".join(map(str, idle))
        warn_user(
            f"rank{'s' * (len(idle) > 1)} {numbers} of {size} only wait{'s' * (len(idle) == 1)} for the "
            f"others: the plan uses {len(placement.plan.used_devices)} devices"
        )


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
