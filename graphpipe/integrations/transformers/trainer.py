"""`PipelineTrainer`: `transformers.Trainer`, whose forwards and backwards a plan divides over the ranks."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.errors import InvalidInput
from graphpipe.integrations.gradient_pipeline import GradientPipeline
from graphpipe.integrations.plan_choice import PlanChoice, PlanFunction
from graphpipe.integrations.transformers.arguments import PRECISIONS, check_arguments, of_one_step
from graphpipe.integrations.transformers.model_stand_in import ModelStandIn
from graphpipe.integrations.transformers.one_process import OneProcess
from graphpipe.integrations.transformers.trained_model import TrainedModel
from graphpipe.planning.settings import PlanSettings
from graphpipe.plans import Plan
from graphpipe.run.comm.world import join
from graphpipe.run.step.pipeline_options import PipelineOptions


class PipelineTrainer(Trainer):
    """Trains a model of `transformers` by a plan: on one rank, or on one rank per device under torchrun.

    It takes the arguments of `transformers.Trainer`, and these. Losses, gradients and weights are those of `Trainer` in
    one process. The mini-batch has `per_device_train_batch_size * gradient_accumulation_steps` samples on any number of
    ranks, all of which read it.

    Args:
        model: to be trained, the same on every rank.
        args: the training arguments.
        arguments: others of `Trainer`, by position.
        plan: a plan, its file, `gp.PlanSettings`, or a function of graph, costs, cluster and number of samples. None:
            `gp.plan` with its defaults.
        cluster: the devices, one for each rank, or the name of a preset or a file. None: the processes of this machine.
        costs: of the operators, from `gp.profile`. None: the estimate for the cluster's devices.
        outputs: entries of the model's output that `compute_metrics` and `predict` get, beside those that the loss
            reads.
        more: arguments of `Trainer`, by name.

    Raises:
        InvalidInput: a training argument is not honoured. In `train`, before the first step: the model cannot be
            captured, or the plan cannot be followed. Infeasible: no plan fits in memory.
    """

    accelerator: OneProcess
    model: Any
    optimizer: Any
    plan: Plan | None = None
    """The plan of the training; None before its first step."""

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        *arguments: Any,
        plan: Plan | str | Path | PlanSettings | PlanFunction | None = None,
        cluster: Cluster | str | None = None,
        costs: CostTable | None = None,
        outputs: Sequence[str] = (),
        **more: Any,
    ) -> None:
        self._choice = PlanChoice(plan=plan, cluster=cluster, costs=costs)
        self._outputs = tuple(outputs)
        self._gradients: GradientPipeline | None = None
        self._trained: TrainedModel | None = None
        self._hooked: torch.optim.Optimizer | None = None
        self._states: dict[int, dict[str, Any]] | None = None
        args = TrainingArguments(output_dir="tmp_trainer") if args is None else args
        check_arguments(args)
        super().__init__(model, of_one_step(args), *arguments, **more)

    def create_accelerator_and_postprocess(self) -> None:
        """Let accelerate see one process."""
        super().create_accelerator_and_postprocess()
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            what = "asks for FSDP or DeepSpeed, and the plan decides which rank holds what"
            raise InvalidInput(what, where="accelerate's configuration", remedy="Start the script with torchrun.")
        self.accelerator = OneProcess.of(self.accelerator)
        self.gather_function = self.accelerator.gather_for_metrics

    def train(self, *arguments: Any, **more: Any) -> Any:
        """Train as `Trainer.train` does; after it, every rank's model is whole and has the trained weights."""
        try:
            result = super().train(*arguments, **more)
            if self._gradients is not None:
                self._gradients.share_model()
        except BaseException as error:
            self._leave(error)
            raise
        self._leave(None)
        return result

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Make the optimizer of all parameters. On each rank, those of its stages have gradients."""
        optimizer = super().create_optimizer(model)
        if self._torch_optimizer is not self._hooked:
            self._hooked = self._torch_optimizer
            self._hooked.register_state_dict_post_hook(self._with_all_states)
        return optimizer

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Compute the gradients of a mini-batch, and return its loss."""
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        self._states = None
        gradients, trained = self._prepared(inputs)
        loss = gradients.step(*trained.batch(inputs, num_items_in_batch))
        return torch.tensor(loss, device=self.args.device)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> Any:
        """Evaluate a batch on the pipeline; before and after a training, on the whole model of this rank."""
        return super().prediction_step(self._evaluated(model), inputs, prediction_loss_only, ignore_keys)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as `Trainer` does; all ranks call this."""
        if self._gradients is not None:
            self._gradients.share_model()
            if _internal_call and not self.args.save_only_model:
                self._states = self._gradients.states_of(self._torch_optimizer)
        super().save_model(output_dir, _internal_call)

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Return the samples of a mini-batch, which the ranks share."""
        return args.train_batch_size

    def store_flos(self) -> None:
        """Count the work of a mini-batch once, not once for each rank."""
        self.state.total_flos += self.current_flos
        self.current_flos = 0

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
        """Return the precision of what runs outside the pipeline: evaluations of the whole model."""
        if self._gradients is not None or self.args.mixed_precision == "no":
            return nullcontext()
        return torch.autocast(self.args.device.type, torch.bfloat16, cache_enabled=cache_enabled)

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        # The pipeline moves each stage to its rank's device, which need not have room for all of them.
        del model, device

    def _prepared(self, inputs: Mapping[str, Any]) -> tuple[GradientPipeline, TrainedModel]:
        # The pipeline of this training, which its first mini-batch begins.
        if self._gradients is None or self._trained is None:
            own = type(self).compute_loss is Trainer.compute_loss and self.compute_loss_func is None
            self._trained = TrainedModel.of(
                self.model,
                inputs,
                None if own and self.label_smoother is None else self._loss_of_outputs,
                labels=self.label_names,
                outputs=self._outputs,
                precision=PRECISIONS[self.args.mixed_precision],
                takes_items=self.model_accepts_loss_kwargs,
            )
            self._gradients = self.accelerator.gradients = self._pipeline(self._trained)
            self._gradients.drop_unhosted_states(self._torch_optimizer)
        return self._gradients, self._trained

    def _pipeline(self, trained: TrainedModel) -> GradientPipeline:
        options = PipelineOptions(
            captured=trained.captured.captured,
            device="cpu" if self.args.device.type == "cpu" else None,
            precision=PRECISIONS[self.args.mixed_precision],
            seed=self.args.seed,
            timeout_seconds=self.args.ddp_timeout,
        )
        world = join(options.device, options.timeout_seconds)
        with world.closing_on_error():
            self.plan = self._choice.agree(trained.captured.captured, self.model, self.args.train_batch_size, world)
            world.leave()
        gradients = GradientPipeline(self.plan, self.model, trained.loss_fn, options)
        gradients.begin_after(self.state.global_step)
        return gradients

    def _loss_of_outputs(self, outputs: Mapping[str, Any], inputs: dict[str, Any], items: Any) -> Tensor:
        model: Any = ModelStandIn(self.model, lambda _: outputs)
        loss: Any = self.compute_loss(model, inputs, num_items_in_batch=items)
        return loss

    def _evaluated(self, model: nn.Module) -> Any:
        # What `prediction_step` calls in place of the model.
        if self._gradients is None or self._trained is None:
            return model.to(self.args.device)
        return ModelStandIn(self.model, partial(self._outputs_of, self._gradients, self._trained))

    def _outputs_of(
        self, gradients: GradientPipeline, trained: TrainedModel, inputs: Mapping[str, Any]
    ) -> dict[str, Any]:
        loss, outputs = gradients.evaluate(*trained.evaluated_batch(inputs))
        return trained.outputs_of(loss, outputs, self.args.device)

    @property
    def _torch_optimizer(self) -> torch.optim.Optimizer:
        # The optimizer itself, which accelerate wraps.
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def _with_all_states(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        del optimizer
        return state if self._states is None else {**state, "state": self._states}

    def _leave(self, error: BaseException | None) -> None:
        gradients, self._gradients, self.accelerator.gradients, self._states = self._gradients, None, None, None
        if gradients is not None:
            gradients.__exit__(type(error) if error is not None else None, error, None)
