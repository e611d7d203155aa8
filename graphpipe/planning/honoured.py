"""Which settings a plan follows: none is ignored in silence.

setting               training   without a flush   inference   by hand
planner, schedule        x              x          (planner)   (schedule)
loads, split             x              x              x           x
balance                  x              x                          x
weights, predictor       x              x                          x
the others           those that the planner declares (`Planner.honours`), as far as the kind of plan has them
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from graphpipe.errors import InvalidInput
from graphpipe.planners.registry import find_planner, planner_names
from graphpipe.planning.choose_schedule import AS_PLANNED, AUTO, check_choice
from graphpipe.planning.problem import check_batch_size
from graphpipe.planning.settings import AUTO_SPLIT, PlanSettings
from graphpipe.plans.stage import WeightPolicy
from graphpipe.schedule.schedulers.registry import SCHEDULERS, find_scheduler

Settings = TypeVar("Settings", bound=PlanSettings)

BY_PLAN = frozenset({"planner", "schedule", "loads", "balance", "split", "inference", "weights", "predictor"})
"""Fields that `plan` itself follows, with every planner. Each other one is followed by the planners that declare it."""
_ANYWAY: Mapping[str, object] = {"objective": "step", "stages_per_device": 1}
"""Values that also describe the plans of planners that do not follow the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A kind of plan that some settings say nothing about."""

    plans: str
    """What such plans are called in a message."""
    without: frozenset[str]
    """Fields that these plans do not follow."""


_WITHOUT_FLUSH = _Kind(
    plans="plans without a flush",
    without=frozenset(
        {"mixed_micro_batches", "objective", "stages_per_device", "offload_to", "effort", "sequence_parallel"}
    ),
)
_INFERENCE = _Kind(
    plans="plans for inference",
    without=frozenset(
        {
            *("mixed_micro_batches", "schedule", "weights", "predictor", "stages_per_device", "offload_to", "balance"),
            "effort",
        }
    ),
)
_BY_HAND = _Kind(
    plans="hand-written stages",
    without=frozenset(
        {
            *("planner", "micro_batch", "mixed_micro_batches", "objective", "stages_per_device", "offload_to"),
            *("tensor", "effort"),
        },
    ),
)


def check_asked(settings: PlanSettings, batch_size: int) -> None:
    """Check what a plan of a planner is asked for.

    Raises:
        InvalidInput: an unknown planner or schedule, a micro-batch larger than the mini-batch or, without a flush, one
            that does not divide it, settings that exclude each other, or a setting that this kind of plan or this
            planner does not follow.
    """
    check_batch_size(batch_size, "batch_size")
    if settings.micro_batch is not None:
        _check_micro_batch(settings.micro_batch, batch_size, settings.weights)
    planner = find_planner(settings.planner)
    if not (planner.infers if settings.inference else planner.trains):
        planned = "training" if planner.trains else "inference"
        names = " or ".join(planner_names(trains=False)) if planner.trains else ""
        remedy = f"Choose {names}." if names else "Plan for inference."
        raise InvalidInput(f"planner '{planner.name}' plans only {planned}", where="planner", remedy=remedy)
    for kind in _kinds(settings):
        _refuse(settings, kind)
    if settings.inference and settings.split == AUTO_SPLIT:
        raise InvalidInput("'auto' does not work for inference", where="split", remedy="Name the operators to split.")
    _check_schedule(settings)
    if settings.sequence_parallel and settings.tensor == 1:
        what, remedy = "is true, but tensor is 1: a device computes a replica alone", "Set tensor, or leave it out."
        raise InvalidInput(what, where="sequence_parallel", remedy=remedy)
    for name in unhonoured(settings):
        what = f"is {_said(settings, name)}, but planner '{planner.name}' does not follow it"
        raise InvalidInput(what, where=name, remedy=_remedy(settings, name))


def check_by_hand(settings: PlanSettings) -> None:
    """Check what hand-written stages are asked for.

    Raises:
        InvalidInput: a setting that only planners follow, or `auto` in place of the operators to split.
    """
    _refuse(settings, _BY_HAND)
    if settings.weights != "flush" and settings.sequence_parallel:
        _refuse(settings, replace(_WITHOUT_FLUSH, without=frozenset({"sequence_parallel"})))
    if settings.inference:
        _refuse(settings, replace(_INFERENCE, without=_INFERENCE.without - {"schedule"}))
    if settings.split == AUTO_SPLIT:
        remedy = "Name the operators, because the stages name their parts."
        raise InvalidInput("'auto' does not work with hand-written stages", where="split", remedy=remedy)


def unhonoured(settings: PlanSettings) -> list[str]:
    """Return the fields that the settings change, and that their planner does not follow."""
    honours = find_planner(settings.planner).honours | BY_PLAN
    others = [each.name for each in fields(PlanSettings) if each.name not in honours]
    return [name for name in others if _asks(settings, name) and getattr(settings, name) != _ANYWAY.get(name)]


def honoured(settings: Settings) -> Settings:
    """Return the settings without those that such a plan or its planner does not follow."""
    ignored = {*unhonoured(settings), *(name for kind in _kinds(settings) for name in _ignored(settings, kind))}
    defaults = PlanSettings()
    return replace(settings, **{name: getattr(defaults, name) for name in ignored})


def _kinds(settings: PlanSettings) -> list[_Kind]:
    if settings.inference:
        return [_INFERENCE]
    return [] if settings.weights == "flush" else [_WITHOUT_FLUSH]


def _check_micro_batch(micro_batch: int, batch_size: int, weights: WeightPolicy) -> None:
    if micro_batch > batch_size:
        what = f"is {micro_batch}, must be at most batch {batch_size}"
        raise InvalidInput(what, where="micro_batch", remedy="Choose a smaller one, or a larger batch.")
    if weights != "flush" and batch_size % micro_batch:
        raise InvalidInput(
            f"micro-batch {micro_batch} does not divide batch {batch_size}, as the weight policy '{weights}' needs",
            where="micro_batch",
            remedy=f"Choose a divisor of {batch_size}, or the weight policy 'flush'.",
        )


def _ignored(settings: PlanSettings, kind: _Kind) -> list[str]:
    own_stages = settings.stages_per_device == 1  # which all plans have that do not share devices
    names = sorted(kind.without - {"stages_per_device"} if own_stages else kind.without)
    return [name for name in names if _asks(settings, name)]


def _refuse(settings: PlanSettings, kind: _Kind) -> None:
    for name in _ignored(settings, kind):
        what = f"is {_said(settings, name)}, but {kind.plans} do not follow it"
        raise InvalidInput(what, where=name, remedy="Leave it out.")


def _remedy(settings: PlanSettings, name: str) -> str:
    planners = planner_names(trains=not settings.inference)
    following = [planner for planner in planners if name in find_planner(planner).honours]
    return f"Leave it out, or choose {' or '.join(following)}." if following else "Leave it out."


def _check_schedule(settings: PlanSettings) -> None:
    if settings.schedule is not None:
        check_choice(settings.schedule)
    if settings.mixed_micro_batches and settings.schedule not in (None, AS_PLANNED, AUTO):
        raise InvalidInput(
            f"schedule '{settings.schedule}' needs one micro-batch size, but mixed sizes run only under kFkB",
            where="schedule",
            remedy="Leave out the schedule or the mixed micro-batches.",
        )
    if settings.weights != "flush":
        _check_endless(settings)


def _check_endless(settings: PlanSettings) -> None:
    name = settings.schedule
    if name is not None and (name == AUTO or not find_scheduler(name).endless):
        known = ", ".join(name for name, each in SCHEDULERS.items() if each.endless and not each.uses_bursts)
        what = f"schedule '{name}' cannot go on without a flush, as the weight policy '{settings.weights}' needs"
        raise InvalidInput(what, where="schedule", remedy=f"Choose {known}, or leave it out.")


def _asks(settings: PlanSettings, name: str) -> bool:
    return getattr(settings, name) != getattr(PlanSettings(), name)


def _said(settings: PlanSettings, name: str) -> str:
    value = getattr(settings, name)
    return f"'{value}'" if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
