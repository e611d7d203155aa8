"""Everything that one rank saves, between two steps: the tensors themselves, or copies, so that training continues."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.model_tensors import ModelTensors
from graphpipe.run.checkpoint.optimizer_state import OptimizerState, extract_optimizer_state, with_averages
from graphpipe.run.checkpoint.safetensors_files import cpu_copies
from graphpipe.run.checkpoint.training_state import TrainingState
from graphpipe.run.step.pipeline_state import PipelineState
from graphpipe.run.weights import sharded_tensors, zero1


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that one rank saves. Later steps do not change copies."""

    tensors: Mapping[str, Tensor]
    """Tensors of the model, by name."""
    optimizers: tuple[OptimizerState, ...]
    slots: Mapping[str, Tensor]
    """Tensors of the optimizers' state, by `parameter:slot`."""
    common: "CommonState | None"
    """What belongs to no stage; None except on rank 0."""
    trained: frozenset[str] = frozenset()
    """The names of tensors that optimizers change."""

    def check_numbers(self, step: int) -> None:
        """Check that no weight is NaN: a training could never continue from it.

        An update can make NaN of finite gradients, and only the next step would notice.

        Raises:
            InvalidInput: names the first such parameter.
        """
        for name in sorted(self.trained & self.tensors.keys()):
            if self.tensors[name].is_floating_point() and bool(torch.isnan(self.tensors[name]).any()):
                raise InvalidInput(
                    f"the optimizer made NaN of parameter '{name}', so no checkpoint is written",
                    where=f"step {step}",
                    remedy="Look at the optimizer's settings, such as eps. The checkpoints before are kept.",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonState:
    """What rank 0 saves for all ranks."""

    training: TrainingState
    plan: Plan
    aliases: dict[str, str]


def take_snapshot(state: PipelineState, training: TrainingState, *, copies: bool) -> Snapshot:
    """Return what this rank saves. Every rank must call this, after `Pipeline.gather_weights`.

    Args:
        state: of the pipeline.
        training: the rest.
        copies: copy the tensors on the host. Otherwise nothing may change them before they are written.

    Raises:
        InvalidInput: the optimizer's state has a value that a checkpoint cannot hold.
    """
    model = ModelTensors.of(state)
    saved = model.saved_by(state)
    optimizers, slots = _optimizers(state, saved, model.counted_by(state), copies=copies)
    common = CommonState(training=training, plan=state.saved_plan, aliases=model.aliases) if state.rank == 0 else None
    return Snapshot(
        tensors=cpu_copies(saved) if copies else saved,
        optimizers=optimizers,
        slots=slots,
        common=common,
        trained=frozenset(state.parameter_names.values()),
    )


def _optimizers(
    state: PipelineState, saved: Mapping[str, Tensor], counted: Collection[str], *, copies: bool
) -> tuple[tuple[OptimizerState, ...], dict[str, Tensor]]:
    # Replicas have the same optimizer state, so a rank keeps only the state of the parameters that it saves itself.
    # With ZeRO-1 each parameter is updated on one replica only, and that one saves its state.
    states: list[OptimizerState] = []
    tensors: dict[str, Tensor] = {}
    here = saved if state.updated is None else state.updated
    for scheduled in state.optimizers:
        names = state.parameter_names
        own, own_slots = extract_optimizer_state(scheduled.optimizer, scheduled.scheduler, names)
        optimizer, slots = with_averages(own, own_slots, scheduled.average, names)
        is_sharded = zero1.local_optimizer(scheduled.optimizer) is not scheduled.optimizer
        kept = {
            name: state_of_parameter
            for name, state_of_parameter in optimizer.parameters.items()
            if name in (counted if is_sharded else here)
        }
        # To assemble shards is a collective call: all ranks go through the names in the same order. Only the rank that
        # saves a tensor keeps it whole, in the memory of the host.
        for name in sorted(slots):
            whole = sharded_tensors.whole(slots[name])
            if name.rpartition(":")[0] in kept:
                tensors |= cpu_copies({name: whole}) if copies or whole is not slots[name] else {name: whole}
        if kept:
            states.append(replace(optimizer, parameters=kept))
    return tuple(states), tensors
