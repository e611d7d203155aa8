"""`PipelineStrategy`: Lightning's loop, optimizers, loggers and checkpoints, with a pipeline in place of one device.

Lightning                                   the pipeline
training_step(batch)                        inputs of the model's call | forwards, losses and backwards | loss
backward(loss)                              the gradients, divided by accumulate_grad_batches
clipping, optimizer, schedules, hooks       -
validation_step(batch)                      the model's call
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.errors import InvalidInput
from graphpipe.graph import Precision as PrecisionName
from graphpipe.integrations.gradient_pipeline import GradientPipeline
from graphpipe.integrations.lightning.lightning_model import LightningModel
from graphpipe.integrations.lightning.namespace import LightningModule, Strategy, Trainer
from graphpipe.integrations.lightning.pipeline_precision import PipelinePrecision
from graphpipe.integrations.lightning.refused import check_module, precision_of
from graphpipe.integrations.plan_choice import PlanChoice, PlanFunction
from graphpipe.planning.settings import PlanSettings
from graphpipe.plans import Plan
from graphpipe.run.comm.world import World, join
from graphpipe.run.step.pipeline_options import PipelineOptions


class PipelineStrategy(Strategy):
    """Trains a LightningModule by a plan: on one rank, or under torchrun on one rank per device.

    `training_step` calls `self(...)` once, or one submodule with all parameters. What comes before the call runs on the
    whole mini-batch, and what comes after it is the loss: a mean over samples. Every rank reads the same batches.

    Args:
        plan: a plan, its file, `gp.PlanSettings`, or a function of graph, costs, cluster and number of samples. None:
            `gp.plan` with its defaults.
        cluster: the devices, one for each rank, or the name of a preset or a file. None: the processes of this machine.
        costs: of the operators, from `gp.profile`. None: the estimate for the cluster's devices.
        whole_batch: submodules or operators that need the whole mini-batch, as in `gp.capture`.
        device: where this rank computes. None: its accelerator, or else the CPU.
        timeout_seconds: how long to wait for a rank that neither answers nor dies.
    """

    def __init__(
        self,
        *,
        plan: Plan | str | Path | PlanSettings | PlanFunction | None = None,
        cluster: Cluster | str | None = None,
        costs: CostTable | None = None,
        whole_batch: tuple[str, ...] = (),
        device: str | None = None,
        timeout_seconds: float = 1800.0,
    ) -> None:
        super().__init__()
        self.plan: Plan | None = None
        """The plan of the training; None before its first step."""
        self._choice = PlanChoice(plan=plan, cluster=cluster, costs=costs)
        self._whole_batch, self._device, self._timeout = whole_batch, device, timeout_seconds
        self._world: World | None = None
        self._known: World | None = None
        self._precision_name: PrecisionName = "fp32"
        self._gradients: GradientPipeline | None = None
        self._trained: LightningModel | None = None
        self._handed: dict[Tensor, Tensor] = {}

    @property
    def world(self) -> World:
        """This rank among all ranks. All ranks join, and leave at the end of a loop."""
        if self._world is None:
            self._world = self._known = join(self._device, self._timeout)
        return self._world

    @property
    def _place(self) -> World:
        # Also after this rank has left: programs ask for their rank whenever they like.
        return self._known or self.world

    @property
    def root_device(self) -> torch.device:
        """Where this rank computes."""
        return self._place.device

    @property
    def global_rank(self) -> int:
        """The number of this rank."""
        return self._place.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._place.size

    @property
    def is_global_zero(self) -> bool:
        """Whether this rank writes logs and checkpoints."""
        return self._place.rank == 0

    def setup(self, trainer: Trainer) -> None:
        """Check what the pipeline is asked for, and set up optimizers."""
        module = self._module
        check_module(module, trainer)
        self._precision_name = precision_of(self.precision_plugin)
        accumulated = trainer.accumulate_grad_batches
        name = self.precision_plugin.precision
        self.precision_plugin = PipelinePrecision(lambda: self._hand_over(1 / accumulated), self._clip, name)
        seeds = self.world.exchange(torch.initial_seed())
        if len(set(seeds)) > 1:  # the ranks must draw the same batches
            torch.manual_seed(seeds[0])
        super().setup(trainer)

    def model_to_device(self) -> None:
        """Leave the model where it is: the pipeline moves each stage to its rank's device."""

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the gradients of a mini-batch, and return its loss."""
        given = (*args, *kwargs.values())
        gradients, trained = self._prepared(given)
        before = {each: each.grad for each in gradients.model.parameters() if each.grad is not None}
        loss = trained.train(gradients, given)
        self._handed = {each: each.grad for each in gradients.model.parameters() if each.grad is not None}
        for each in gradients.model.parameters():
            each.grad = before.get(each)
        return torch.tensor(loss, device=self.root_device)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step on every rank; the model's call on the pipeline, if the training has begun."""
        return self._evaluated(self._module.validation_step, args, kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step, as `validation_step`."""
        return self._evaluated(self._module.test_step, args, kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step, as `validation_step`."""
        return self._evaluated(self._module.predict_step, args, kwargs)

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what every rank has."""
        del args, kwargs
        return tensor

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """Return what every rank has."""
        del group, sync_grads
        return tensor

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks."""
        del name
        self.world.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return a rank's value on all ranks: texts, paths, numbers, lists of them, None."""
        told = self.world.exchange(str(obj) if isinstance(obj, Path) else obj)[src]
        return type(obj)(told) if isinstance(obj, Path) else told

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return whether all ranks, or any, decide so."""
        decisions = self.world.exchange(bool(decision))
        return min(decisions) if all else max(decisions)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the whole model's state on every rank; all ranks call this."""
        self._share()
        return super().lightning_module_state_dict()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimizer's state as one process would have it, on rank 0; all ranks call this."""
        state = super().optimizer_state(optimizer)
        if self._gradients is None:
            return state
        return {**state, "state": self._gradients.states_of(getattr(optimizer, "_optimizer", optimizer))}

    def teardown(self) -> None:
        """Give every rank the whole trained model, and leave the other ranks."""
        self._share()
        self._leave(None)
        if not any(parameter.is_meta for parameter in self._module.parameters()):  # as after an error
            super().teardown()
        if self._world is not None:
            self._world.leave()
            self._world = None

    def on_exception(self, exception: BaseException) -> None:
        """Leave at once, so that the other ranks need not wait."""
        self._leave(exception)
        if self._world is not None:
            self._world.abandon()
            self._world = None

    @property
    def _module(self) -> LightningModule:
        assert self.lightning_module is not None, "the trainer connects the module first"
        return self.lightning_module

    def _prepared(self, given: tuple[Any, ...]) -> tuple[GradientPipeline, LightningModel]:
        # The pipeline of this training, which its first mini-batch begins.
        if self._gradients is None or self._trained is None:
            options = PipelineOptions(
                device=self.root_device,
                precision=self._precision_name,
                seed=torch.initial_seed() % 2**63,
                timeout_seconds=self._timeout,
            )
            self._trained = LightningModel.of(self._module, given, self._precision_name, self._whole_batch)
            self.plan = self._choice.agree(
                self._trained.captured, self._trained.calls.called, self._trained.samples, self.world
            )
            self._gradients = self._trained.pipeline(self.plan, options)
            self._gradients.begin_after(self._module.trainer.global_step)
            for optimizer in self.optimizers:
                self._gradients.drop_unhosted_states(optimizer)
        return self._gradients, self._trained

    def _evaluated(self, step: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._gradients is None or self._trained is None:
            self._module.to(self.root_device)
            return step(*args, **kwargs)
        return self._trained.evaluate(self._gradients, step, args, kwargs)

    def _hand_over(self, factor: float) -> None:
        for parameter, gradient in self._handed.items():
            gradient = gradient if factor == 1 else gradient * factor
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        self._handed = {}

    def _clip(self, limit: float) -> None:
        if self._gradients is None:
            raise InvalidInput("no gradients were computed", where="gradient_clip_val")
        self._gradients.clip_gradients(limit)

    def _share(self) -> None:
        if self._gradients is not None:
            self._gradients.share_model()

    def _leave(self, error: BaseException | None) -> None:
        gradients, self._gradients, self._handed = self._gradients, None, {}
        if gradients is not None:
            gradients.__exit__(type(error) if error is not None else None, error, None)
