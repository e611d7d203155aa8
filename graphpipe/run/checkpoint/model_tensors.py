"""The tensors of the model by their names in the user's module: which of them a rank saves, and which it loads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import parameter_of
from graphpipe.model.stage_program import StageProgram
from graphpipe.run.checkpoint.manifest import Manifest
from graphpipe.run.checkpoint.recut_tensors import whole_forms
from graphpipe.run.checkpoint.safetensors_files import dtype_name
from graphpipe.run.device.buckets import BUCKET_BYTES
from graphpipe.run.step.pipeline_state import PipelineState
from graphpipe.run.tensor.tensor_slices import counted

Named = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTensors:
    """Parameters and persistent buffers, as in the user's `state_dict()`.

    A tensor that two stages use belongs to the first of them. Tied tensors are saved under one name and have the other
    names as aliases. Tensors that no stage uses belong to rank 0, so that a checkpoint always holds the whole model.
    Of a parameter that a plan splits, a stage has slices, which are saved under the names of `ParameterSlice`.
    """

    stages: tuple[Named, ...]
    unused: Named
    aliases: dict[str, str]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Of the whole tensors, where the user's model is known. A rank may not know all slices of a parameter."""

    @staticmethod
    def of(state: PipelineState) -> "ModelTensors":
        """Return the tensors of the pipeline's model."""
        whole = state_tensors(state.model) if state.model is not None else {}
        first: dict[int, str] = {}
        for name, tensor in whole.items():
            first.setdefault(id(tensor), name)
        aliases = {name: first[id(tensor)] for name, tensor in whole.items() if first[id(tensor)] != name}
        stages = tuple(_of_stage(program, whole if state.model is not None else None) for program in state.programs)
        used = {parameter_of(name) for stage in stages for name in stage} | aliases.keys()
        unused = {name: tensor for name, tensor in whole.items() if name not in used}
        shapes = {name: tuple(tensor.shape) for name, tensor in whole.items()}
        return ModelTensors(stages=stages, unused=unused, aliases=aliases, shapes=shapes)

    @property
    def whole(self) -> Named:
        """Every tensor once, from the first stage that uses it."""
        whole = dict(self.unused)
        for stage in self.stages:
            whole |= {name: tensor for name, tensor in stage.items() if name not in whole}
        return whole

    def saved_by(self, state: PipelineState) -> Named:
        """Return what this rank saves: the stages whose replica 0 it hosts, and on rank 0 the unused tensors.

        Of a replica that several ranks share, each saves the slices that it has, and the first one everything else.
        """
        saved = dict(self.unused) if state.rank == 0 else {}
        seen: set[str] = set(self.unused)
        for number, stage in enumerate(self.stages):
            if number in state.saved:
                at = state.positions.get(number, 0)
                mine = {name: tensor for name, tensor in stage.items() if counted(state.plan, number, at, name)}
                saved |= {name: tensor for name, tensor in mine.items() if name not in seen}
            seen |= stage.keys()
        return saved

    def counted_by(self, state: PipelineState) -> set[str]:
        """Return the tensors of this rank's stages, but of replicas that ranks share only what the rank counts."""
        at = {number: state.positions.get(number, 0) for number in state.hosted}
        return {name for number in at for name in self.stages[number] if counted(state.plan, number, at[number], name)}

    def loaded_by(self, state: PipelineState) -> list[Named]:
        """Return what this rank loads: those of every stage it hosts and, on rank 0, the unused tensors."""
        hosted = [self.stages[number] for number in state.hosted]
        return [self.unused, *hosted] if state.rank == 0 else hosted

    def check_fits(self, manifest: Manifest, where: str) -> None:
        """Check that a checkpoint is of this model.

        Raises:
            InvalidInput: names the first tensor that is missing on one side, or that differs in shape or dtype.
        """
        own = whole_forms(
            {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in self.whole.items()}
        )
        own = {name: (dtype, self.shapes.get(name, shape)) for name, (dtype, shape) in own.items()}
        saved = whole_forms({name: (tensor.dtype, tensor.shape) for name, tensor in manifest.tensors.items()})
        for name, form in own.items():
            if name not in saved:
                raise _other_model(f"it has no '{name}', which this model has", where)
            if saved[name] != form:
                theirs, ours = (f"{dtype}{[*shape]}" for dtype, shape in (saved[name], form))
                raise _other_model(f"'{name}' is {theirs} in it and {ours} in this model", where)
        for name in saved:
            if name not in own:
                raise _other_model(f"it has '{name}', which this model does not have", where)


def state_tensors(module: nn.Module) -> Named:
    """Return the tensors of a module's state_dict: the tensors themselves, without `extra state` of other types."""
    return {name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}


def buckets_of(named: Sequence[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    """Yield tensors in groups of about `BUCKET_BYTES`, so that few values are in memory beside them."""
    group: list[tuple[str, Tensor]] = []
    for name, tensor in named:
        if group and sum(each.nbytes for _, each in group) + tensor.nbytes > BUCKET_BYTES:
            yield group
            group = []
        group.append((name, tensor))
    if group:
        yield group


def fill_tensors(named: Sequence[tuple[str, Tensor]], values: Mapping[str, Tensor]) -> None:
    """Copy values into a rank's tensors of the same names."""
    with torch.no_grad():
        for name, tensor in named:
            tensor.copy_(values[name])


def _of_stage(program: StageProgram, persistent: Named | None) -> Named:
    # If the user's module is not known, the stage's own state_dict decides which buffers are persistent.
    kept = program.module.state_dict(keep_vars=True)
    names: Named = {program.parameter_names[local]: parameter for local, parameter in program.module.named_parameters()}
    for local, buffer in program.module.named_buffers():
        name = program.buffer_names.get(local)  # None: the forward has made it, and makes it again
        if name is not None and (name in persistent if persistent is not None else local in kept):
            names[name] = buffer
    return names


def _other_model(difference: str, where: str) -> InvalidInput:
    return InvalidInput(
        f"the checkpoint is of another model: {difference}",
        where=where,
        remedy="Build the model that was trained, or train anew.",
    )
