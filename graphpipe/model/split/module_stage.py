"""A stage of a split model: a graph module over the user's own submodules."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn

from graphpipe.model.stage_program import ValueSpec
from graphpipe.model.torch_private import TreeSpec, flatten, unflatten


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleStage:
    """A `StageProgram` that runs a graph module.

    Glue computes the same in training and in evaluation, so only the modes of the user's submodules matter, and both
    `model.eval()` and `stage.module.eval()` set them. Hooks of opaque submodules are called.
    """

    module: fx.GraphModule
    model_inputs: tuple[str, ...]
    receives: Mapping[int, tuple[ValueSpec, ...]]
    sends: Mapping[int, tuple[ValueSpec, ...]]
    is_output: bool
    parameter_names: Mapping[str, str]
    buffer_names: Mapping[str, str]
    arguments: tuple[str, ...]
    """Names of the graph module's arguments, in order."""
    sent: tuple[str, ...]
    """Names of the values it returns first, in order."""
    output_spec: TreeSpec
    """The containers of the model's output."""
    output_dtypes: tuple[torch.dtype | None, ...] = ()

    def __call__(self, values: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], object]:
        """Compute the stage (see StageProgram)."""
        # Not fx's own `__call__`, which is slower because it looks for errors in generated code.
        sent, results = nn.Module.__call__(self.module, *[values[name] for name in self.arguments])
        output = unflatten(results, self.output_spec) if self.is_output else None
        return dict(zip(self.sent, sent, strict=True)), output

    def arrange(self, output: object) -> object:
        """Return the model's output in the user's containers (see StageProgram)."""
        return unflatten(flatten(output)[0], self.output_spec)

    def replicate(self) -> "ModuleStage":
        """Return a copy with its own parameters and buffers."""
        return replace(self, module=copy.deepcopy(self.module))
