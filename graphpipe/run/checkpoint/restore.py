"""A verified checkpoint into a pipeline: every rank reads the tensors of the stages it hosts, and no others."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from graphpipe.errors import CheckpointCorrupt, GraphPipeError
from graphpipe.run.checkpoint.manifest import MANIFEST, Contents, verify_checkpoint
from graphpipe.run.checkpoint.model_tensors import ModelTensors, fill
from graphpipe.run.checkpoint.optimizer_state import OptimizerState, restore, saved_with, slot
from graphpipe.run.checkpoint.safetensors_files import read_tensors
from graphpipe.run.checkpoint.snapshot import PLAN, parameter_names
from graphpipe.run.checkpoint.training_state import TRAINING, TrainingState, read_state
from graphpipe.run.comm.together import together
from graphpipe.run.step.pipeline_state import Held
from graphpipe.run.weights import zero1 as zero

_OPTIMIZERS = "optimizer-*.json"


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
        with _naming(checkpoint):
            restore(stepper.optimizer, stepper.scheduler, names, saved, tensors)


def optimizers(checkpoint: Path, contents: Contents) -> Sequence[OptimizerState]:
    """Return what every rank's optimizer left, the tensors apart.

    Raises:
        CheckpointCorrupt: it cannot be read, or is of other tensors than the manifest has.
    """
    names = [name for name in contents.files if name.startswith("optimizer-") and name.endswith(".json")]
    saved = [read_state(OptimizerState, "optimizer", checkpoint / name) for name in sorted(names)]
    slots = {slot(name, key) for state in saved for name, kept in state.parameters.items() for key in kept.slots}
    for name in sorted(slots ^ contents.slots.keys()):
        what = f"'{name}' is in it or in {_OPTIMIZERS}, and not in both"
        raise CheckpointCorrupt(what, where=str(checkpoint / MANIFEST))
    return saved


def verify_state(checkpoint: Path) -> Contents:
    """Return the contents of a checkpoint if all is as it was written, and training can go on from it.

    Raises:
        CheckpointCorrupt: names the file at fault.
    """
    contents = verify_checkpoint(checkpoint)
    for name in (TRAINING, PLAN):
        if name not in contents.files:
            raise CheckpointCorrupt(f"does not list {name}", where=str(checkpoint / MANIFEST))
    TrainingState.load(checkpoint / TRAINING)
    optimizers(checkpoint, contents)
    return contents


@contextmanager
def _naming(checkpoint: Path) -> Generator[None]:
    # Classes of torch and of the user say in many ways that a state is not theirs, and name no file.
    try:
        yield
    except GraphPipeError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        what = f"is no state of this optimizer and its schedule: {type(error).__name__}: {error}"
        raise CheckpointCorrupt(what, where=str(checkpoint / _OPTIMIZERS)) from error
