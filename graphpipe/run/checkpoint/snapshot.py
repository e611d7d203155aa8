"""One rank's part of a checkpoint: taken in memory between two steps, then written while training goes on."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from graphpipe.files.json_document import write_document
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.folder import sync
from graphpipe.run.checkpoint.manifest import Contents, TensorEntry, measure
from graphpipe.run.checkpoint.model_tensors import ModelTensors
from graphpipe.run.checkpoint.optimizer_state import OptimizerState, describe
from graphpipe.run.checkpoint.safetensors_files import copies, write_tensors
from graphpipe.run.checkpoint.training_state import TRAINING, TrainingState
from graphpipe.run.step.pipeline_state import Held
from graphpipe.run.weights import sharded_tensors as shards
from graphpipe.run.weights import zero1 as zero

PLAN = "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Copies of all that a rank saves: nothing that training does later changes them."""

    tensors: Mapping[str, Tensor]
    optimizers: tuple[OptimizerState, ...]
    slots: Mapping[str, Tensor]
    shared: "Shared | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What rank 0 saves for all."""

    training: TrainingState
    plan: Plan
    aliases: dict[str, str]


def take(held: Held, training: TrainingState) -> Snapshot:
    """Copy what this rank saves; every rank must call this, after `Held.publish`.

    Raises:
        InvalidInput: the optimizer keeps what a checkpoint cannot hold.
    """
    model = ModelTensors.of(held)
    saved = model.saved_by(held)
    optimizers, slots = _optimizers(held, saved)
    shared = Shared(training=training, plan=held.plan, aliases=model.aliases) if held.world.rank == 0 else None
    return Snapshot(tensors=copies(saved), optimizers=optimizers, slots=copies(slots), shared=shared)


def parameter_names(held: Held) -> dict[int, str]:
    """Return the names, in the user's model, of the parameters that this rank's optimizer changes, by identity."""
    return {
        id(parameter): leader.program.parameter_names[local]
        for leader in held.worker.leaders()
        for local, parameter in leader.module.named_parameters()
    }


def write(part: Path, rank: int, snapshot: Snapshot) -> None:
    """Write a rank's files, and last a list of them that `written` reads; all is on the disk at the end.

    Raises:
        InvalidInput: a tensor has a dtype that cannot be saved.
        OSError: something cannot be written.
    """
    tensors = _write_tensors(part / f"model-{rank:02}.safetensors", snapshot.tensors)
    slots = _write_tensors(part / f"optimizer-{rank:02}.safetensors", snapshot.slots)
    names = {entry.file for entry in (*tensors.values(), *slots.values())}
    for number, optimizer in enumerate(snapshot.optimizers):
        names.add(name := f"optimizer-{rank:02}{f'-{number}' if number else ''}.json")
        write_document(part / name, "optimizer", optimizer)
    if snapshot.shared is not None:
        names |= {TRAINING, PLAN}
        write_document(part / TRAINING, "training", snapshot.shared.training)
        snapshot.shared.plan.save(part / PLAN)
    for name in names:
        sync(part / name)
    contents = Contents(
        files={name: measure(part / name) for name in sorted(names)},
        tensors=tensors,
        slots=slots,
        aliases=snapshot.shared.aliases if snapshot.shared else {},
    )
    contents.save(_list_of(part, rank))


def written(part: Path, ranks: int) -> bool:
    """True once every rank has written its part."""
    return all(_list_of(part, rank).exists() for rank in range(ranks))


def collect(part: Path, ranks: int) -> Contents:
    """Return what all ranks have written, and remove their lists of it."""
    lists = [_list_of(part, rank) for rank in range(ranks)]
    contents = Contents.union(Contents.load(path) for path in lists)
    for path in lists:
        path.unlink()
    return contents


def _optimizers(held: Held, saved: Mapping[str, Tensor]) -> tuple[tuple[OptimizerState, ...], dict[str, Tensor]]:
    # Of a rank's parameters those it saves itself, because replicas have the same state; or those it alone updates.
    names = parameter_names(held)
    states: list[OptimizerState] = []
    tensors: dict[str, Tensor] = {}
    for stepper in held.update.steppers:
        state, slots = describe(stepper.optimizer, stepper.scheduler, names)
        alone = zero.holder(stepper.optimizer) is not stepper.optimizer
        kept = {name: each for name, each in state.parameters.items() if alone or name in saved}
        whole = {name: shards.whole(slots[name]) for name in sorted(slots)}  # all ranks in the same order
        tensors |= {name: tensor for name, tensor in whole.items() if name.rpartition(":")[0] in kept}
        if kept:
            states.append(replace(state, parameters=kept))
    return tuple(states), tensors


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, TensorEntry]:
    return write_tensors(path, tensors) if tensors else {}


def _list_of(part: Path, rank: int) -> Path:
    return part / f"written-{rank:02}.json"
