"""An optimizer's state by parameter name, so that it does not depend on how a plan spreads parameters over ranks.

Every rank has its own optimizer. Its state is saved by parameter name, and every parameter says which group's options
it had. Under another plan, an optimizer therefore finds the state and the options of each parameter that it holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pydantic import ConfigDict
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from graphpipe.errors import CheckpointCorrupt, InvalidInput
from graphpipe.files.json_body import Count
from graphpipe.run.checkpoint.json_values import tensor_of_json, tensor_to_json, to_json_value, with_types_of
from graphpipe.run.checkpoint.manifest import MANIFEST, Manifest, read_checkpoint_document
from graphpipe.run.checkpoint.nested_tensors import put_tensors, take_tensors
from graphpipe.run.weights import zero1
from graphpipe.run.weights.sharded_tensors import in_shards
from graphpipe.run.weights.weight_update import SLOT, WeightAverage

PER_GROUP = ("base_lrs", "_last_lr", "lr_lambdas", "min_lrs")
"""Lists with an entry per parameter group, in the state of a learning-rate schedule."""
STATE_FILES = "optimizer-*.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterState:
    """The optimizer's state of one parameter."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    group: Count
    """Number of the parameter group that it belongs to."""
    plain: dict[str, Any]
    """Values that are not tensors."""
    slots: tuple[str, ...]
    """Names of the tensors. A checkpoint holds them as `parameter:slot`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """One rank's optimizer and its learning-rate schedule, without the tensors."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: str
    """Name of the optimizer's class."""
    groups: tuple[dict[str, Any], ...]
    """Options of each parameter group."""
    parameters: dict[str, ParameterState]
    scheduler: dict[str, Any] | None
    others: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else the optimizer's state dict has."""

    def __post_init__(self) -> None:
        for name, kept in self.parameters.items():
            if kept.group >= len(self.groups):
                what = f"parameter '{name}' is in group {kept.group}, there are {len(self.groups)}"
                raise InvalidInput(what, where="parameters")


def slot_name(parameter: str, slot: str) -> str:
    """Return the name under which a tensor of an optimizer's state is saved."""
    return f"{parameter}:{slot}"


def extract_optimizer_state(
    optimizer: Optimizer, scheduler: LRScheduler | None, names: Mapping[int, str]
) -> tuple[OptimizerState, dict[str, Tensor]]:
    """Return an optimizer's state of the parameters that it updates on this rank, and its tensors by `parameter:slot`.

    Args:
        optimizer: of this rank.
        scheduler: its learning-rate schedule.
        names: of the parameters, by identity.

    Raises:
        InvalidInput: the state has a value that is neither a tensor nor fit for JSON.
    """
    parameters: dict[str, ParameterState] = {}
    tensors: dict[str, Tensor] = {}
    local = zero1.local_optimizer(optimizer)
    where = type(local).__name__
    for number, group in enumerate(local.param_groups):
        for parameter in group["params"]:
            name, kept = names[id(parameter)], cast("dict[str, Any]", local.state.get(parameter, {}))
            plain, slots = {}, dict[str, Tensor]()
            for key, value in kept.items():
                if isinstance(value, Tensor):
                    slots[key] = value
                else:
                    without, inside = take_tensors(value, key)
                    plain[key] = to_json_value(without, f"{where}, {key} of '{name}'")
                    slots |= inside
            tensors |= {slot_name(name, key): tensor for key, tensor in slots.items()}
            parameters[name] = ParameterState(group=number, plain=plain, slots=tuple(slots))
    state = OptimizerState(
        kind=where,
        groups=tuple(_saved_options(local, group) for group in optimizer.param_groups),
        parameters=parameters,
        scheduler=None if scheduler is None else to_json_value(scheduler.state_dict(), type(scheduler).__name__),
        others=other_state(local),
    )
    return state, tensors


def other_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return what an optimizer's state dict has beside that of torch's optimizers, such as the rate of its last step.

    Raises:
        InvalidInput: a checkpoint cannot hold it, such as the weights that a wrapper of another optimizer keeps.
    """
    found = optimizer.state_dict()
    return {
        key: to_json_value(value, f"{type(optimizer).__name__}, {key}")
        for key, value in found.items()
        if key not in ("state", "param_groups")
    }


def _saved_options(optimizer: Optimizer, group: Mapping[str, Any]) -> dict[str, Any]:
    # Options that the optimizer adds while it steps are absent when a new one reads them, so tensors keep their types.
    return {
        key: tensor_to_json(value)
        if isinstance(value, Tensor) and key not in optimizer.defaults
        else to_json_value(value, f"{type(optimizer).__name__}, {key}")
        for key, value in _options(group).items()
    }


def with_averages(
    state: OptimizerState, slots: Mapping[str, Tensor], average: WeightAverage | None, names: Mapping[int, str]
) -> tuple[OptimizerState, dict[str, Tensor]]:
    """Return an optimizer's state and its tensors with the averages of the parameters that are in it."""
    if average is None:
        return state, dict(slots)
    named = {names[id(each)]: kept for each, kept in zip(average.parameters, average.averages, strict=True)}
    parameters = {name: replace(kept, slots=(*kept.slots, SLOT)) for name, kept in state.parameters.items()}
    return replace(state, parameters=parameters), {
        **slots,
        **{slot_name(name, SLOT): named[name] for name in parameters},
    }


def without_averages(saved: Sequence[OptimizerState]) -> tuple[Sequence[OptimizerState], set[str]]:
    """Return what an optimizer keeps itself, and the names of the parameters that were saved with averages."""
    named = [(name, kept) for state in saved for name, kept in state.parameters.items()]
    own = [
        replace(
            state,
            parameters={
                name: replace(kept, slots=tuple(slot for slot in kept.slots if slot != SLOT))
                for name, kept in state.parameters.items()
            },
        )
        for state in saved
    ]
    return own, {name for name, kept in named if SLOT in kept.slots}


def restore_optimizer_state(
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
    names: Mapping[int, str],
    saved: Sequence[OptimizerState],
    tensors: Mapping[str, Tensor],
) -> None:
    """Give an optimizer and its schedule the state that was saved for its parameters, whichever rank saved it.

    Args:
        optimizer: of this rank.
        scheduler: its learning-rate schedule.
        names: of the parameters, by identity.
        saved: the optimizer states of all ranks.
        tensors: by `parameter:slot`.

    Raises:
        InvalidInput: a parameter was saved without an optimizer or with another kind, or parameters that are now in
            one group had different options.
        LookupError, TypeError, ValueError: the saved state does not fit this optimizer or its schedule.
    """
    local = zero1.local_optimizer(optimizer)
    updated = {id(parameter) for group in local.param_groups for parameter in group["params"]}
    state: dict[int, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    sources: list[tuple[OptimizerState, int]] = []
    first = 0
    for group in optimizer.param_groups:
        members = [names[id(parameter)] for parameter in group["params"]]
        origins = [saved_state_of(saved, name, type(local).__name__) for name in members]
        own, numbers = _options(group), [*range(first, first + len(members))]
        options = own | with_types_of(own, _common_options(members, origins))
        device = group["params"][0].device
        groups.append({key: tensor_of_json(value, device) for key, value in options.items()} | {"params": numbers})
        sources.append((origins[0], origins[0].parameters[members[0]].group))
        for index, parameter, name, origin in zip(numbers, group["params"], members, origins, strict=True):
            kept = origin.parameters[name]
            if id(parameter) in updated and (kept.plain or kept.slots):
                # Copies, because two stages that share a parameter each have a tensor for it.
                slots = {key: in_shards(tensors[slot_name(name, key)].clone(), parameter) for key in kept.slots}
                plain, inside = put_tensors(kept.plain, slots)
                state[index] = plain | {key: tensor for key, tensor in slots.items() if key not in inside}
        first += len(members)
    others = sources[0][0].others if local is optimizer and sources else {}
    zero1.load(optimizer, {"state": state, "param_groups": groups} | others)
    if scheduler is not None:
        state_of_schedule = _regrouped_schedule([(origin.scheduler, group) for origin, group in sources])
        scheduler.load_state_dict(with_types_of(scheduler.state_dict(), state_of_schedule or {}))


def read_optimizer_states(checkpoint: Path, manifest: Manifest) -> Sequence[OptimizerState]:
    """Return the optimizer states that all ranks have saved, without the tensors.

    Raises:
        CheckpointCorrupt: a file cannot be read, or its tensors are not those of the manifest.
    """
    names = [name for name in manifest.files if name.startswith("optimizer-") and name.endswith(".json")]
    saved = [read_checkpoint_document(OptimizerState, "optimizer", checkpoint / name) for name in sorted(names)]
    slots = {slot_name(name, key) for state in saved for name, kept in state.parameters.items() for key in kept.slots}
    for name in sorted(slots ^ manifest.slots.keys()):
        what = f"'{name}' is listed either here or in {STATE_FILES}, and must be in both"
        raise CheckpointCorrupt(what, where=str(checkpoint / MANIFEST))
    return saved


def saved_state_of(saved: Sequence[OptimizerState], name: str, kind: str) -> OptimizerState:
    """Return the optimizer state that holds a parameter.

    Raises:
        InvalidInput: the parameter is in none of them, or was trained with another kind of optimizer.
    """
    remedy = "Train the same parameters with the same optimizer, or start from the exported weights."
    for state in saved:
        if name in state.parameters:
            if state.kind == kind:
                return state
            what = f"parameter '{name}' was trained with {state.kind}, this run uses {kind}"
            raise InvalidInput(what, where="checkpoint", remedy=remedy)
    raise InvalidInput(f"has no optimizer state of parameter '{name}'", where="checkpoint", remedy=remedy)


def _common_options(members: Sequence[str], origins: Sequence[OptimizerState]) -> dict[str, Any]:
    options = [origin.groups[origin.parameters[name].group] for name, origin in zip(members, origins, strict=True)]
    for name, other in zip(members, options, strict=True):
        for key, value in options[0].items():
            if other.get(key) != value:
                raise InvalidInput(
                    f"parameters '{members[0]}' and '{name}' had {key} {value} and {other.get(key)}, "
                    "this run has them in one parameter group",
                    where="checkpoint",
                    remedy="Build the optimizer with the same parameter groups.",
                )
    return options[0]


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def _regrouped_schedule(sources: Sequence[tuple[Any, int]]) -> Any:
    # The state of a schedule. Lists with an entry per group get each group's entry from the state that it was saved
    # in. Everything else comes from the first state.
    first = sources[0][0]
    if isinstance(first, list):
        return [_regrouped_schedule([(tree[index], group) for tree, group in sources]) for index in range(len(first))]
    if not isinstance(first, dict):
        return first
    keys = cast("dict[str, Any]", first)
    return {
        key: [tree[key][group] for tree, group in sources]
        if key in PER_GROUP and isinstance(keys[key], list)
        else _regrouped_schedule([(tree[key], group) for tree, group in sources])
        for key in keys
    }
