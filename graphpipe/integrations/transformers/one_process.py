"""What accelerate is told: all ranks are one process, which trains one model on one mini-batch."""

from collections.abc import Iterable
from typing import Any, cast

from accelerate import Accelerator, DistributedType
from torch import Tensor, nn

from graphpipe.integrations.gradient_pipeline import GradientPipeline
from graphpipe.integrations.transformers.model_stand_in import ModelStandIn


class OneProcess(Accelerator):
    """An accelerator that neither shards batches, nor wraps or moves the model: the pipeline's ranks share both."""

    gradients: GradientPipeline | None = None
    """Has the gradients, while the training goes on."""

    @staticmethod
    def of(accelerator: Accelerator) -> "OneProcess":
        """Return the same accelerator with these methods: `Trainer` makes it, and takes no class for it."""
        accelerator.__class__ = OneProcess
        accelerator.device_placement = False  # the pipeline moves the rows that a stage reads
        return cast("OneProcess", accelerator)

    @property
    def num_processes(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One: every rank reads the same batches."""
        return 1

    @property
    def process_index(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The first."""
        return 0

    @property
    def distributed_type(self) -> DistributedType:
        """None."""
        return DistributedType.NO

    @property
    def dispatch_batches(self) -> bool:
        """False: no rank hands out its batches, also of a stream."""
        return False

    def gather(self, tensor: Any) -> Any:
        """Return what every rank has."""
        return tensor

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Return what has the same size on every rank."""
        del dim, pad_index, pad_first
        return tensor

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Return the model: the pipeline places its stages, and runs them in their precision."""
        del device_placement, evaluation_mode
        if not any(each is model for each in self._models):
            self._models.append(model)
        return model

    def clip_grad_norm_(self, parameters: Iterable[Tensor], max_norm: float, norm_type: int = 2) -> Any:
        """Clip by the norm over all stages, on all ranks, and return it."""
        if self.gradients is None:
            return super().clip_grad_norm_(parameters, max_norm, norm_type)
        return self.gradients.clip_gradients(max_norm)

    def unwrap_model(self, model: Any, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
        """Return the user's model, also for what stands in for it in a loss."""
        model = model.model if isinstance(model, ModelStandIn) else model
        return super().unwrap_model(model, keep_fp32_wrapper, keep_torch_compile)
