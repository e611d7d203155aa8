"""An optimizer's state by parameter name, apart from how a plan spreads the parameters over optimizers.

Every rank has an optimizer of its own. What it keeps for a parameter goes by the parameter's name, and the options
of its parameter groups go by parameter too: an optimizer of another plan finds both for whatever it holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ConfigDict
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from graphpipe.errors import InvalidInput
from graphpipe.files.json_document import Count
from graphpipe.run.checkpoint.json_values import like, plain
from graphpipe.run.weights import zero1 as zero
from graphpipe.run.weights.sharded_tensors import in_shards

PER_GROUP = ("base_lrs", "_last_lr", "lr_lambdas", "min_lrs")
"""In the state of a learning-rate schedule: lists with an entry per parameter group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterState:
    """What an optimizer keeps for one parameter."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    group: Count
    plain: dict[str, Any]
    """What is no tensor."""
    slots: tuple[str, ...]
    """What is: they are saved as `parameter:slot`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """One rank's optimizer and its learning-rate schedule, the tensors apart."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: str
    groups: tuple[dict[str, Any], ...]
    """Options of each parameter group."""
    parameters: dict[str, ParameterState]
    scheduler: dict[str, Any] | None

    def __post_init__(self) -> None:
        for name, kept in self.parameters.items():
            if kept.group >= len(self.groups):
                what = f"parameter '{name}' is in group {kept.group}, there are {len(self.groups)}"
                raise InvalidInput(what, where="parameters")


def slot(parameter: str, name: str) -> str:
    """Return the name a tensor of an optimizer is saved under."""
    return f"{parameter}:{name}"


def describe(
    optimizer: Optimizer, scheduler: LRScheduler | None, names: Mapping[int, str]
) -> tuple[OptimizerState, dict[str, Tensor]]:
    """Return an optimizer's state, and its tensors by `parameter:slot`, of the parameters that it updates on this rank.

    Args:
        optimizer: of some parameters.
        scheduler: of the optimizer.
        names: of its parameters, by identity.

    Raises:
        InvalidInput: it keeps something that is neither a tensor nor plain.
    """
    parameters: dict[str, ParameterState] = {}
    tensors: dict[str, Tensor] = {}
    holder = zero.holder(optimizer)
    where = type(holder).__name__
    for number, group in enumerate(holder.param_groups):
        for parameter in group["params"]:
            name, kept = names[id(parameter)], cast("dict[str, Any]", holder.state.get(parameter, {}))
            held = {key: value for key, value in kept.items() if isinstance(value, Tensor)}
            tensors |= {slot(name, key): tensor for key, tensor in held.items()}
            rest = {key: plain(value, f"{where}, {key} of '{name}'") for key, value in kept.items() if key not in held}
            parameters[name] = ParameterState(group=number, plain=rest, slots=tuple(held))
    state = OptimizerState(
        kind=where,
        groups=tuple(plain(_options(group), where) for group in optimizer.param_groups),
        parameters=parameters,
        scheduler=None if scheduler is None else plain(scheduler.state_dict(), type(scheduler).__name__),
    )
    return state, tensors


def restore(
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
    names: Mapping[int, str],
    saved: Sequence[OptimizerState],
    tensors: Mapping[str, Tensor],
) -> None:
    """Give an optimizer, and its schedule, the state that was saved for its parameters, by whatever optimizers.

    Raises:
        InvalidInput: a parameter had no optimizer, or another kind; or parameters of one group had unequal options.
        LookupError, TypeError, ValueError: what was saved is no state of theirs.
    """
    holder = zero.holder(optimizer)
    updated = {id(parameter) for group in holder.param_groups for parameter in group["params"]}
    state: dict[int, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    sources: list[tuple[OptimizerState, int]] = []
    first = 0
    for group in optimizer.param_groups:
        held = [names[id(parameter)] for parameter in group["params"]]
        origins = [saved_with(saved, name, type(holder).__name__) for name in held]
        options = _agreed(held, origins)
        groups.append(_options(group) | like(options, _options(group)) | {"params": [*range(first, first + len(held))]})
        sources.append((origins[0], origins[0].parameters[held[0]].group))
        for index, (parameter, name, origin) in enumerate(zip(group["params"], held, origins, strict=True), first):
            kept = origin.parameters[name]
            if id(parameter) in updated and (kept.plain or kept.slots):
                # Copies, because a parameter may be here twice: of two stages that share it.
                slots = {key: in_shards(tensors[slot(name, key)].clone(), parameter) for key in kept.slots}
                state[index] = kept.plain | slots
        first += len(held)
    zero.load(optimizer, {"state": state, "param_groups": groups})
    if scheduler is not None:
        found = _regroup([(origin.scheduler, group) for origin, group in sources])
        scheduler.load_state_dict(like(found or {}, scheduler.state_dict()))


def saved_with(saved: Sequence[OptimizerState], name: str, kind: str) -> OptimizerState:
    """Return the optimizer that a parameter was saved with.

    Raises:
        InvalidInput: there is none, or it is of another kind.
    """
    remedy = "Train the same parameters with the same optimizer, or start from the exported weights."
    for state in saved:
        if name in state.parameters:
            if state.kind == kind:
                return state
            what = f"parameter '{name}' was trained with {state.kind}, this run uses {kind}"
            raise InvalidInput(what, where="checkpoint", remedy=remedy)
    raise InvalidInput(f"has no optimizer state of parameter '{name}'", where="checkpoint", remedy=remedy)


def _agreed(held: Sequence[str], origins: Sequence[OptimizerState]) -> dict[str, Any]:
    options = [origin.groups[origin.parameters[name].group] for name, origin in zip(held, origins, strict=True)]
    for name, other in zip(held, options, strict=True):
        for key, value in options[0].items():
            if other.get(key) != value:
                raise InvalidInput(
                    f"parameters '{held[0]}' and '{name}' had {key} {value} and {other.get(key)}, "
                    "this run has them in one parameter group",
                    where="checkpoint",
                    remedy="Build the optimizer with the same parameter groups.",
                )
    return options[0]


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def _regroup(sources: Sequence[tuple[Any, int]]) -> Any:
    # A schedule's state: what it has per group comes from each group's own source, all else from the first.
    first = sources[0][0]
    if isinstance(first, list):
        return [_regroup([(tree[index], group) for tree, group in sources]) for index in range(len(first))]
    if not isinstance(first, dict):
        return first
    keys = cast("dict[str, Any]", first)
    return {
        key: [tree[key][group] for tree, group in sources]
        if key in PER_GROUP and isinstance(keys[key], list)
        else _regroup([(tree[key], group) for tree, group in sources])
        for key in keys
    }
