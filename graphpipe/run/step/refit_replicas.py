"""The replicas of a rank put into the form that inputs of certain shapes need."""

from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.split.split_for_shapes import rebind
from graphpipe.plans import Plan
from graphpipe.run.stage.recompute import Forgetful, keep_regions
from graphpipe.run.stage.stage_replica import Form, StageReplica
from graphpipe.run.step.programs_by_shape import Fitted, show
from graphpipe.run.step.worker import Worker
from graphpipe.run.weights.sharded_tensors import is_sharded


def fit(worker: Worker[StageReplica], plan: Plan, first: Fitted, wanted: Fitted) -> None:
    """Give every replica the stage program for these shapes; its parameters, buffers and modes stay what they are.

    Args:
        worker: of this rank.
        plan: that is run.
        first: what the replicas were built with.
        wanted: what they shall compute next.

    Raises:
        InvalidInput: parameters that glue reads are in FSDP's shards.
    """
    for replica in worker.replicas.values():
        replica.forms.setdefault(first.inputs, (replica.program, replica.forgetful))
        if wanted.inputs not in replica.forms:
            replica.forms[wanted.inputs] = _form(plan, replica, first, wanted)
        replica.program, replica.forgetful = replica.forms[wanted.inputs]


def _form(plan: Plan, replica: StageReplica, first: Fitted, wanted: Fitted) -> Form:
    number = replica.seat.stage
    stage, original, program = plan.stages[number], first.programs[number], wanted.programs[number]
    own = replica.forms[first.inputs][0]
    if program is original:
        return replica.forms[first.inputs]
    if own is not original:
        assert isinstance(program, ModuleStage)
        program = rebind(program, original.module, own.module)
        _check_glue(own.module, program.module, stage.name, wanted)
    program.module.to(replica.device)
    keep_regions(program, stage, replica.device)
    return program, Forgetful(program.module) if replica.forgetful is not None else None


def _check_glue(own: nn.Module, module: nn.Module, stage: str, wanted: Fitted) -> None:
    # FSDP puts gathered weights into the modules it knows: the user's, but not one that runs glue for other shapes.
    known = {id(each) for each in own.modules()}
    glue = [each for each in module.modules() if id(each) not in known]
    for parameter in (parameter for each in glue for parameter in each.parameters(recurse=False)):
        if is_sharded(parameter):
            raise InvalidInput(
                f"the inputs are {show(wanted.inputs)}, not those the plan was made with, and a parameter of shape "
                f"{[*parameter.shape]} is read outside of the model's submodules",
                where=f"stage '{stage}'",
                remedy="FSDP cannot follow there: pad the samples, or choose engine='ddp' or 'allreduce'.",
            )
