"""A pipeline that computes gradients, and leaves everything else to the trainer of another library.

The gradients of a mini-batch end in the parameters of the user's own model, on the ranks that host them. On the other
ranks these parameters have neither data nor gradients, so that an optimizer of all parameters updates the hosted ones.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from graphpipe.integrations.optimizer_states import gather_states
from graphpipe.plans import Plan
from graphpipe.run.initial_weights.own_tensors import names_of
from graphpipe.run.pipeline import Pipeline
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.step.pipeline_options import PipelineOptions


class GradientPipeline:
    """A model that a plan splits, for a trainer that updates its weights. All ranks call its methods alike (SPMD).

    Args:
        plan: that `check_followed` allows.
        model: the user's, the same on every rank.
        loss_fn: as for `Pipeline`.
        options: of the pipeline.

    Raises:
        InvalidInput, PeerLost, PeerStalled: as `Pipeline`.
    """

    def __init__(self, plan: Plan, model: nn.Module, loss_fn: LossFunction, options: PipelineOptions) -> None:
        self.model = model
        self.pipeline = Pipeline(plan, model, loss_fn, None, options=options)
        self._owned = _owned_parameters(self.pipeline, model)

    def begin_after(self, steps: int) -> None:
        """Draw random numbers, as for dropout, as after so many steps: a training that is resumed continues."""
        self.pipeline.resume(steps, None)

    def step(self, inputs: Mapping[str, Tensor], targets: Any) -> float:
        """Compute the gradients of a mini-batch, and return its mean loss, the same on every rank.

        Args:
            inputs: of the mini-batch, which may have fewer samples than the plan's.
            targets: of the loss function.

        Raises:
            InvalidInput: it has more samples. NonFiniteLoss: of the loss or a gradient. OutOfMemory, PeerLost,
            PeerStalled: as `Pipeline.step`.
        """
        self._adopt_weights()
        return self.pipeline.step(inputs, targets)

    def evaluate(self, inputs: Mapping[str, Tensor], targets: Any) -> tuple[float | None, Any]:
        """Return the mean loss (None without targets) and the outputs of any number of samples, on every rank."""
        self._adopt_weights()
        return self.pipeline.evaluate(inputs, targets)

    def gradient_norm(self) -> float:
        """Return the norm of the whole model's gradients, the same on every rank."""
        gradients = [parameter.grad for parameter in self._owned if parameter.grad is not None]
        world = self.pipeline.world
        squares = torch.zeros((), dtype=torch.float64, device=world.device)
        if gradients:
            squares += torch.nn.utils.get_total_norm(gradients).double() ** 2
        world.sum(squares)
        return float(squares.sqrt())

    def clip_gradients(self, limit: float) -> float:
        """Scale all gradients so that their norm is at most `limit`, and return their norm before."""
        norm = self.gradient_norm()
        hosted = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        if hosted:
            torch.nn.utils.clip_grads_with_norm_(hosted, limit, torch.tensor(norm, device=hosted[0].device))
        return norm

    def share_model(self) -> None:
        """Give every rank's whole model memory and the current weights, for saving and for what needs all of it."""
        self.pipeline.sync_model()

    def drop_unhosted_states(self, optimizer: Optimizer) -> None:
        """Free the optimizer's state of parameters that other ranks host, as after a checkpoint was loaded."""
        for parameter in [each for each in optimizer.state if each.is_meta]:
            del optimizer.state[parameter]

    def states_of(self, optimizer: Optimizer) -> dict[int, dict[str, Any]]:
        """Return the `state` of the optimizer's `state_dict` as one process would have it, on rank 0.

        Raises:
            PeerLost, PeerStalled: another rank is gone.
        """
        return gather_states(optimizer, self._owned, self.pipeline.world)

    def close(self) -> None:
        """Leave the other ranks once all of them are ready to leave."""
        self.pipeline.close()

    def __enter__(self) -> Self:
        """Return the pipeline; it closes at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an error at once, so that the other ranks need not wait."""
        self.pipeline.__exit__(kind, error, trace)

    def _adopt_weights(self) -> None:
        # The trainer has changed the user's model, which other replicas in this process are copies of.
        self.pipeline.resume(self.pipeline.steps, None)


def _owned_parameters(pipeline: Pipeline, model: nn.Module) -> list[nn.Parameter]:
    # Each trainable parameter is owned by one rank: the first that hosts it, also if tied or replicated.
    names, world = names_of(model), pipeline.world
    hosted = {names[key][0]: key for key in pipeline.state.parameter_names}
    listed = world.exchange(sorted(hosted))
    before = {name for rank in listed[: world.rank] for name in rank}
    owned = {key for name, key in hosted.items() if name not in before}
    return [parameter for parameter in model.parameters() if id(parameter) in owned]
