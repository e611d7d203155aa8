"""What a pipeline gives of itself: what a checkpoint saves and restores on a rank, and the last gradients."""

from torch import Tensor, nn

from graphpipe.run.pipeline_parts import PipelineParts
from graphpipe.run.rounds.train_rounds import TrainRounds
from graphpipe.run.step.pipeline_state import PipelineState
from graphpipe.run.weights import sharded_tensors


def state_of(parts: PipelineParts, model: nn.Module | None, steps: int, seed: int) -> PipelineState:
    """Return what a checkpoint saves and restores on a rank.

    Args:
        parts: of the pipeline.
        model: the user's, if the pipeline was built from it.
        steps: done.
        seed: of the training.
    """
    worker, training = parts.worker, parts.training
    rounds = training if isinstance(training, TrainRounds) else None
    leaders, rank = worker.leaders(), worker.world.rank
    hosted = tuple(leader.slot.stage for leader in leaders)
    return PipelineState(
        rank=rank,
        steps=steps,
        seed=seed,
        plan=training.plan,
        loss_scale=training.loss_scale,
        model=model,
        programs=parts.programs,
        hosted=hosted,
        saved=tuple(stage for stage in hosted if rank in worker.placement.team(stage, 0)),
        positions={stage: worker.placement.position(stage, rank) for stage in hosted},
        parameter_names={
            id(parameter): leader.program.parameter_names[name]
            for leader in leaders
            for name, parameter in leader.module.named_parameters()
        }
        | ({} if rounds is None else rounds.parameter_names),
        optimizers=tuple(training.update.optimizers),
        saved_plan=training.plan if rounds is None else rounds.rounds.plan or training.plan,
        updated=None if rounds is None else frozenset(rounds.parameter_names.values()),
    )


def whole_gradients(parts: PipelineParts) -> dict[str, Tensor | None]:
    """Return the gradients of this rank's parameters by their names in the model, shards joined."""
    if isinstance(parts.training, TrainRounds):
        return parts.training.gradients()
    gradients = {
        leader.program.parameter_names[name]: parameter.grad
        for leader in parts.worker.leaders()
        for name, parameter in leader.module.named_parameters()
    }
    return {name: None if each is None else sharded_tensors.whole(each) for name, each in gradients.items()}
