"""The tensors of the model by the names they have in the user's module: which a rank saves, and which it needs."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.stage_program import StageProgram
from graphpipe.run.checkpoint.manifest import Contents
from graphpipe.run.checkpoint.safetensors_files import dtype_name
from graphpipe.run.comm import broadcast as share
from graphpipe.run.step.pipeline_state import Held

Named = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTensors:
    """Parameters and persistent buffers, which are those of the user's `state_dict()`.

    A name that two stages share belongs to the first of them. Tied tensors have one name and the rest as aliases.
    What no stage uses belongs to rank 0, so that a checkpoint is always the whole model.
    """

    stages: tuple[Named, ...]
    rest: Named
    aliases: dict[str, str]

    @staticmethod
    def of(held: Held) -> "ModelTensors":
        """Return the tensors of the pipeline's model."""
        whole = state(held.model) if held.model is not None else {}
        first: dict[int, str] = {}
        for name, tensor in whole.items():
            first.setdefault(id(tensor), name)
        aliases = {name: first[id(tensor)] for name, tensor in whole.items() if first[id(tensor)] != name}
        stages = tuple(_of_stage(program, whole if held.model is not None else None) for program in held.programs)
        used = {name for stage in stages for name in stage} | aliases.keys()
        return ModelTensors(
            stages=stages, rest={name: tensor for name, tensor in whole.items() if name not in used}, aliases=aliases
        )

    @property
    def whole(self) -> Named:
        """Every tensor once, each of the first stage that has it."""
        whole = dict(self.rest)
        for stage in self.stages:
            whole |= {name: tensor for name, tensor in stage.items() if name not in whole}
        return whole

    def saved_by(self, held: Held) -> Named:
        """Return what this rank saves: the stages whose replica 0 it hosts, and on rank 0 what no stage uses."""
        saved = dict(self.rest) if held.world.rank == 0 else {}
        seen: set[str] = set(self.rest)
        for number, stage in enumerate(self.stages):
            if held.worker.placement.ranks(number)[0] == held.world.rank:
                saved |= {name: tensor for name, tensor in stage.items() if name not in seen}
            seen |= stage.keys()
        return saved

    def needed_by(self, held: Held) -> list[Named]:
        """Return what this rank loads: all its stages, and what no stage uses."""
        hosted = [leader.seat.stage for leader in held.worker.leaders()]
        return [self.rest, *(self.stages[number] for number in hosted)]

    def check_fits(self, contents: Contents, where: str) -> None:
        """Check that a checkpoint is of this model.

        Raises:
            InvalidInput: names the first tensor that only one of both has, or that differs in shape or dtype.
        """
        whole = self.whole
        for name, tensor in whole.items():
            entry = contents.tensors.get(name)
            if entry is None:
                raise _other_model(f"it has no '{name}', which this model has", where)
            theirs, own = f"{entry.dtype}{list(entry.shape)}", f"{dtype_name(tensor)}{list(tensor.shape)}"
            if theirs != own:
                raise _other_model(f"'{name}' is {theirs} in it and {own} in this model", where)
        for name in contents.tensors:
            if name not in whole:
                raise _other_model(f"it has '{name}', which this model has not", where)


def state(module: nn.Module) -> Named:
    """Return the tensors of a module's state_dict, themselves; `extra state` that is no tensor is left out."""
    return {name: each for name, each in module.state_dict(keep_vars=True).items() if isinstance(each, Tensor)}


def fill(held: Held, named: list[Named], values: Mapping[str, Tensor]) -> None:
    """Copy the values into a rank's tensors, and on into the further replicas of its stages."""
    with torch.no_grad():
        for each in named:
            for name, tensor in each.items():
                tensor.copy_(values[name])
    for leader in held.worker.leaders():
        for follower in held.worker.of_stage(leader.seat.stage)[1:]:
            share.copy(leader.module, follower.module)


def _of_stage(program: StageProgram, persistent: Named | None) -> Named:
    # Without the user's module, what the stage's own state_dict would keep.
    kept = program.module.state_dict(keep_vars=True)
    names: Named = {program.parameter_names[local]: each for local, each in program.module.named_parameters()}
    for local, buffer in program.module.named_buffers():
        name = program.buffer_names[local]
        if name in persistent if persistent is not None else local in kept:
            names[name] = buffer
    return names


def _other_model(difference: str, where: str) -> InvalidInput:
    return InvalidInput(
        f"the checkpoint is of another model: {difference}",
        where=where,
        remedy="Build the model that was trained, or train anew.",
    )
