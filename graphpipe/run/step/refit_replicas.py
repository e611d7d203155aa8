"""Fits the replicas of a rank to the shapes of the inputs."""

from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.split.split_for_shapes import rebind
from graphpipe.plans import Plan
from graphpipe.run.stage.recompute import Recomputation, set_up_regions
from graphpipe.run.stage.stage_replica import Form, StageReplica
from graphpipe.run.step.programs_by_shape import ShapedPrograms, format_inputs
from graphpipe.run.weights.check_sync import choices
from graphpipe.run.weights.sharded_tensors import is_sharded
from graphpipe.run.worker.worker import StageWorker


def refit_replicas(worker: StageWorker, plan: Plan, first: ShapedPrograms, wanted: ShapedPrograms) -> None:
    """Give every replica the stage program for these shapes; its parameters, buffers and modes do not change.

    Args:
        worker: of this rank.
        plan: that is run.
        first: the programs that the replicas were built with.
        wanted: the programs for the next mini-batch.

    Raises:
        InvalidInput: glue reads parameters that FSDP has sharded.
    """
    for replica in worker.replicas.values():
        replica.forms.setdefault(first.inputs, (replica.program, replica.recomputation))
        if wanted.inputs not in replica.forms:
            replica.forms[wanted.inputs] = _form(plan, replica, first, wanted)
        replica.program, replica.recomputation = replica.forms[wanted.inputs]


def _form(plan: Plan, replica: StageReplica, first: ShapedPrograms, wanted: ShapedPrograms) -> Form:
    number = replica.slot.stage
    stage, original, program = plan.stages[number], first.programs[number], wanted.programs[number]
    own = replica.forms[first.inputs][0]
    if program is original:
        return replica.forms[first.inputs]
    if own is not original:
        assert isinstance(program, ModuleStage)
        program = rebind(program, original.module, own.module)
        _check_glue(own.module, program.module, stage.name, wanted)
    program.module.to(replica.device)
    set_up_regions(program, stage, replica.device, replica.offloading)
    return program, Recomputation(program.module) if replica.recomputation is not None else None


def _check_glue(own: nn.Module, module: nn.Module, stage: str, wanted: ShapedPrograms) -> None:
    # FSDP gathers weights into the user's modules, but not into a module that runs the glue for other shapes.
    known = {id(submodule) for submodule in own.modules()}
    glue = [submodule for submodule in module.modules() if id(submodule) not in known]
    for parameter in (parameter for submodule in glue for parameter in submodule.parameters(recurse=False)):
        if is_sharded(parameter):
            raise InvalidInput(
                f"the inputs are {format_inputs(wanted.inputs)}, not those the plan was made with, "
                f"and a parameter of shape {[*parameter.shape]} is read outside of the model's submodules",
                where=f"stage '{stage}'",
                remedy=f"Pad the samples, or choose {choices(lambda traits: not traits.shards_parameters)}.",
            )
