"""A verified checkpoint into a pipeline: every rank reads only the tensors of the stages that it hosts."""

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from graphpipe.errors import CheckpointCorrupt, GraphPipeError
from graphpipe.run.checkpoint.manifest import MANIFEST, TRAINING, Manifest
from graphpipe.run.checkpoint.model_tensors import ModelTensors, buckets_of, fill_tensors
from graphpipe.run.checkpoint.optimizer_state import (
    STATE_FILES,
    read_optimizer_states,
    restore_optimizer_state,
    saved_state_of,
    slot_name,
    without_averages,
)
from graphpipe.run.checkpoint.recut_tensors import read_parameters, read_slots, with_states_of
from graphpipe.run.checkpoint.training_state import TrainingState
from graphpipe.run.comm.collective_calls import collective_call
from graphpipe.run.comm.world import World
from graphpipe.run.step.pipeline_state import PipelineState
from graphpipe.run.weights import zero1
from graphpipe.run.weights.weight_update import SLOT, WeightAverage


def restore(world: World, state: PipelineState, checkpoint: Path) -> TrainingState:
    """Give a rank's part of the pipeline the state of a checkpoint. Every rank must call this, then `Pipeline.resume`.

    Raises:
        InvalidInput: on every rank, if the checkpoint is of another model, optimizer, seed or mini-batch size.
        CheckpointCorrupt: on every rank, if any rank cannot read what it needs.
        PeerLost, PeerStalled: another rank is gone.
    """
    return collective_call(world, lambda: _restore_rank(state, checkpoint))


def _restore_rank(state: PipelineState, checkpoint: Path) -> TrainingState:
    manifest = Manifest.load(checkpoint / MANIFEST)
    training = TrainingState.load(checkpoint / TRAINING)
    training.check(seed=state.seed, batch_size=state.plan.batch_size, where=str(checkpoint))
    model = ModelTensors.of(state)
    model.check_fits(manifest, str(checkpoint))
    targets = model.loaded_by(state)
    _restore_optimizers(state, checkpoint, manifest)
    named = [(name, tensor) for tensors in targets for name, tensor in tensors.items()]
    for some in buckets_of(named):
        values = read_parameters(checkpoint, manifest.tensors, {name for name, _ in some})
        fill_tensors(some, values)
    return training


def _restore_optimizers(state: PipelineState, checkpoint: Path, manifest: Manifest) -> None:
    if not state.optimizers:
        return
    names = state.parameter_names
    saved, averaged = without_averages(with_states_of(read_optimizer_states(checkpoint, manifest), names.values()))
    for scheduled in state.optimizers:
        local = zero1.local_optimizer(scheduled.optimizer)
        own = [names[id(parameter)] for group in local.param_groups for parameter in group["params"]]
        kept = {name: saved_state_of(saved, name, type(local).__name__).parameters[name] for name in own}
        tensors = read_slots(checkpoint, manifest, {name: parameter.slots for name, parameter in kept.items()})
        with _naming_state_files(checkpoint):
            restore_optimizer_state(scheduled.optimizer, scheduled.scheduler, names, saved, tensors)
        if scheduled.average is not None:
            _restore_average(scheduled.average, names, checkpoint, manifest, averaged)


def _restore_average(
    average: WeightAverage, names: Mapping[int, str], checkpoint: Path, manifest: Manifest, saved: Collection[str]
) -> None:
    # Averages that the checkpoint does not have begin as its weights.
    own = [names[id(parameter)] for parameter in average.parameters]
    slots = read_slots(checkpoint, manifest, {name: (SLOT,) for name in own if name in saved})
    weights = read_parameters(checkpoint, manifest.tensors, {name for name in own if name not in saved})
    average.load([slots[slot_name(name, SLOT)] if name in saved else weights[name] for name in own])


@contextmanager
def _naming_state_files(checkpoint: Path) -> Generator[None]:
    # Optimizers and schedules of torch and of the user raise many kinds of errors for a state that does not fit them,
    # and none of these errors names a file.
    try:
        yield
    except GraphPipeError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        what = f"does not fit this optimizer and its schedule: {type(error).__name__}: {error}"
        raise CheckpointCorrupt(what, where=str(checkpoint / STATE_FILES)) from error
