"""A verified checkpoint into a pipeline: every rank reads the tensors of the stages it hosts, and no others."""

from collections.abc import Sequence
from pathlib import Path

from graphpipe.run import zero
from graphpipe.run.checkpoint_manifest import MANIFEST, Contents
from graphpipe.run.checkpoint_model import ModelTensors, fill
from graphpipe.run.checkpoint_optimizer import OptimizerState, restore, saved_with, slot
from graphpipe.run.checkpoint_part import parameter_names
from graphpipe.run.checkpoint_tensors import read_tensors
from graphpipe.run.checkpoint_training import TRAINING, TrainingState, read_state
from graphpipe.run.held import Held
from graphpipe.run.together import together


def load(held: Held, checkpoint: Path) -> TrainingState:
    """Give a rank's part of a pipeline the state of a checkpoint; every rank must call this.

    Raises:
        InvalidInput: on every rank, if the checkpoint is of another model, optimizer, seed or mini-batch size.
        CheckpointCorrupt: on every rank, if any cannot read what it needs.
        PeerLost, PeerStalled: another rank is gone.
    """
    return together(held.world, lambda: _load(held, checkpoint))


def _load(held: Held, checkpoint: Path) -> TrainingState:
    contents = Contents.load(checkpoint / MANIFEST)
    training = TrainingState.load(checkpoint / TRAINING)
    training.check(seed=held.seed, batch_size=held.plan.batch_size, where=str(checkpoint))
    model = ModelTensors.of(held)
    model.check_fits(contents, str(checkpoint))
    needed = model.needed_by(held)
    values = read_tensors(checkpoint, {name: contents.tensors[name] for each in needed for name in each})
    _load_optimizer(held, checkpoint, contents)
    fill(held, needed, values)
    held.adopt()
    return training


def _load_optimizer(held: Held, checkpoint: Path, contents: Contents) -> None:
    if not held.update.steppers:
        return
    saved = optimizers(checkpoint, contents)
    names = parameter_names(held)
    for stepper in held.update.steppers:
        holder = zero.holder(stepper.optimizer)
        own = [names[id(parameter)] for group in holder.param_groups for parameter in group["params"]]
        kept = {name: saved_with(saved, name, type(holder).__name__).parameters[name] for name in own}
        wanted = [slot(name, key) for name in own for key in kept[name].slots]
        tensors = read_tensors(checkpoint, {name: contents.slots[name] for name in wanted})
        restore(stepper.optimizer, stepper.scheduler, names, saved, tensors)


def optimizers(checkpoint: Path, contents: Contents) -> Sequence[OptimizerState]:
    """Return what every rank's optimizer left, the tensors apart."""
    names = [name for name in contents.files if name.startswith("optimizer-") and name.endswith(".json")]
    return [read_state(OptimizerState, "optimizer", checkpoint / name) for name in sorted(names)]
