"""The settings of `plan` beside graph, costs and cluster: their checks and their defaults."""

from graphpipe.cluster import Cluster
from graphpipe.errors import InvalidInput, nearest
from graphpipe.planners.choose_schedule import AS_PLANNED, AUTO, check_choice
from graphpipe.planners.problem.options import Objective, OffloadTo
from graphpipe.planners.registry import find_planner
from graphpipe.planners.weight_settings import check_weights
from graphpipe.plans.stage import Predictor, WeightPolicy
from graphpipe.simulator.critical_path import overlaps

_OBJECTIVES = ("step", "bottleneck")
_INFERENCE_OBJECTIVES = ("throughput", "latency")
_STAGES_PER_DEVICE = 4


def check_objective(objective: str | None, *, inference: bool) -> None:
    """Check that an objective is one of training or of inference, whichever is planned. None is the default.

    Raises:
        InvalidInput: it is not.
    """
    known, others = _OBJECTIVES, _INFERENCE_OBJECTIVES
    if inference:
        known, others = others, known
    if objective not in (None, *known):
        of = f"Of {'inference' if inference else 'training'} it is {' or '.join(known)}."
        remedy = of if objective in others else nearest(str(objective), [*known])
        raise InvalidInput(f"unknown objective '{objective}'", where="objective", remedy=remedy)


def check_settings(
    *,
    batch_size: int,
    planner: str,
    micro_batch: int | None,
    mixed_micro_batches: bool,
    schedule: str | None,
    weights: WeightPolicy = "flush",
    predictor: Predictor = "",
    stages_per_device: int | None,
    offload_to: OffloadTo = "host",
) -> None:
    """Check the arguments of `plan` other than graph, costs and cluster.

    Raises:
        InvalidInput: an unknown planner or schedule, a micro-batch or a number of stages out of range, or settings that
            exclude each other.
    """
    if micro_batch is not None and (micro_batch < 1 or batch_size % micro_batch):
        raise InvalidInput(
            f"micro-batch {micro_batch} does not divide batch {batch_size}",
            where="micro_batch",
            remedy=f"Choose a divisor of {batch_size}.",
        )
    if stages_per_device is not None and stages_per_device < 1:
        raise InvalidInput(f"is {stages_per_device}, must be at least 1", where="stages_per_device")
    if offload_to not in ("host", "neighbours"):
        raise InvalidInput(f"is '{offload_to}', must be 'host' or 'neighbours'", where="offload_to")
    find_planner(planner)
    if schedule is not None:
        check_choice(schedule)
    if mixed_micro_batches and schedule not in (None, AS_PLANNED, AUTO):
        raise InvalidInput(
            f"schedule '{schedule}' needs one micro-batch size, but mixed sizes run only under kFkB",
            where="schedule",
            remedy="Leave out the schedule or the mixed micro-batches.",
        )
    check_weights(weights, predictor, schedule, mixed_micro_batches=mixed_micro_batches)


def default_schedule(planner: str, cluster: Cluster, objective: Objective, *, mixed_micro_batches: bool) -> str:
    """Return the schedule that a plan gets if the caller does not name one.

    It is the planner's default (`Planner.default_schedule`), with three exceptions that get `1f1b`: the published
    objective, mixed micro-batch sizes (which run under kFkB), and devices that share cores, as processes on one machine
    do. A shared core always has other work, so filling bubbles does not help, and two halves of a backward cost more
    than a whole one.
    """
    if objective == "step" and not mixed_micro_batches and cluster.cores_per_node is None:
        return find_planner(planner).default_schedule
    return AS_PLANNED


def default_stages_per_device(cluster: Cluster, objective: Objective) -> int:
    """Return how many stages a device may host if the caller does not say.

    It is 4. It is 1 for the published objective, and on clusters on which sharing rarely pays: if devices share cores,
    or cannot move messages while they compute.
    """
    return _STAGES_PER_DEVICE if objective == "step" and overlaps(cluster) else 1
