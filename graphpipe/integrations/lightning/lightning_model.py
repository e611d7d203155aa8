"""A LightningModule, captured for a pipeline: the model that its steps call, and the loss that follows the call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.graph import Origin
from graphpipe.graph import Precision as PrecisionName
from graphpipe.integrations.gradient_pipeline import GradientPipeline
from graphpipe.integrations.lightning.logged_values import LoggedValues
from graphpipe.integrations.lightning.namespace import LightningModule
from graphpipe.integrations.lightning.step_calls import Scalar, StepCalls
from graphpipe.model.capture.capture import Captured, capture_nodes
from graphpipe.model.capture.fused_attention import is_fused
from graphpipe.plans import Plan
from graphpipe.run.stage.tensor_tree import leaves
from graphpipe.run.step.pipeline_options import PipelineOptions


@dataclass(slots=True, kw_only=True)
class LightningModel:
    """The model of a LightningModule, and how to train and evaluate it."""

    module: LightningModule
    calls: StepCalls
    captured: Captured
    arguments: Mapping[str, Scalar]
    """Arguments of the call that are no tensors: they are the same in every step."""
    samples: int
    """Of the mini-batches that it is planned for."""
    rest: tuple[Any, ...] = ()
    """What the present `training_step` gets beside the batch."""
    logged: LoggedValues = field(default_factory=LoggedValues)

    @staticmethod
    def of(
        module: LightningModule, given: tuple[Any, ...], precision: PrecisionName, whole_batch: tuple[str, ...]
    ) -> "LightningModel":
        """Capture a LightningModule.

        Args:
            module: with its trainer.
            given: what `training_step` gets in the first step.
            precision: of the forwards in training.
            whole_batch: as in `gp.capture`.

        Raises:
            InvalidInput: the step calls no model, or one that cannot be captured.
        """
        with LoggedValues().collecting(module, 0):
            calls = StepCalls.of(module, module.training_step, given)
            inputs, arguments = calls.inputs(module.training_step, given)
        if not inputs:
            raise InvalidInput("is called without tensors", where=f"'{calls.path or 'self'}' in training_step")
        called = calls.called
        origin = Origin(
            method="auto",
            whole_batch=whole_batch,
            arguments=tuple(arguments.items()),
            precision=precision,
            fused_attention=is_fused(called),
        )
        return LightningModel(
            module=module,
            calls=calls,
            captured=capture_nodes(called, inputs, origin),
            arguments=arguments,
            samples=len(next(iter(inputs.values()))),
        )

    def pipeline(self, plan: Plan, options: PipelineOptions) -> GradientPipeline:
        """Return the pipeline of a plan."""
        return GradientPipeline(plan, self.calls.called, self.loss_fn, replace(options, captured=self.captured))

    def train(self, gradients: GradientPipeline, given: tuple[Any, ...]) -> float:
        """Compute the gradients of a mini-batch, log what its steps log, and return its loss; all ranks call this."""
        with LoggedValues().collecting(self.module, 0):
            inputs = self._inputs(*self.calls.inputs(self.module.training_step, given))
        batch, *rest = given
        self.rest = tuple(rest)
        loss = gradients.step(inputs, batch)
        self.logged.tell(self.module, gradients.pipeline.world, len(next(iter(inputs.values()))))
        return loss

    def loss_fn(self, outputs: Any, batch: Any) -> Tensor:
        """Return what `training_step` returns for some samples of the batch, with the outputs of the pipeline."""
        samples = len(leaves(batch)[0])
        with (
            self.logged.collecting(self.module, samples),
            self.calls.answering(lambda *_, **__: outputs, once=True),
        ):
            returned: Any = self.module.training_step(batch, *self.rest)
        if isinstance(returned, Mapping):
            returned = returned.get("loss")
        if not isinstance(returned, Tensor):
            raise InvalidInput(
                f"returned {type(returned).__name__}, not a loss", where="training_step", remedy="Return the loss."
            )
        return returned

    def evaluate(
        self, gradients: GradientPipeline, step: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return what a step returns, whose call of the model the pipeline computes; all ranks call this."""

        def answer(*given: Any, **keywords: Any) -> Any:
            return gradients.evaluate(self._inputs(*self.calls.named(given, keywords)), None)[1]

        with self.calls.answering(answer, once=False):
            return step(*args, **kwargs)

    def _inputs(self, inputs: dict[str, Tensor], arguments: Mapping[str, Scalar]) -> dict[str, Tensor]:
        if dict(arguments) != dict(self.arguments):
            raise InvalidInput(
                f"is called with {dict(arguments)}, in the first step it was {dict(self.arguments)}",
                where=f"'{self.calls.path or 'self'}'",
                remedy="Pass what changes from step to step as a tensor.",
            )
        return inputs
