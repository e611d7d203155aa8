"""A stage of a split model: a graph module over the user's own submodules."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.capture.module_graph.module_graph import EvaluationOutput
from graphpipe.model.fake_copy import uncopied
from graphpipe.model.stage_program import StageProgram, ValueSpec
from graphpipe.model.torch_private import TreeSpec, flatten, unflatten


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleStage:
    """A `StageProgram` that runs a graph module.

    Glue runs as in training. It computes the same in evaluation (`in_evaluation` names the exception), so only the
    modes of the user's submodules matter, and both `model.eval()` and `stage.module.eval()` set them. Hooks of opaque
    submodules are called.
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
    summed: frozenset[str] = frozenset()
    """Names in the model of the parameters of which this rank gets the gradient of its positions only."""
    output_dtypes: tuple[torch.dtype | None, ...] = ()
    mixes: tuple[str, str] | None = None
    """How it mixes the samples of a part of the mini-batch, and the remedy; None if it is not known to."""
    in_evaluation: EvaluationOutput | None = None
    """What the model returns in evaluation, if it is something else than in training."""

    def __call__(self, values: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], object]:
        """Compute the stage (see StageProgram)."""
        # Not fx's own `__call__`, which is slower because it looks for errors in generated code.
        sent, results = nn.Module.__call__(self.module, *[values[name] for name in self.arguments])
        return dict(zip(self.sent, sent, strict=True)), self.output(results)

    def output(self, results: Sequence[Any]) -> object:
        """Return the model's output in this mode, given the leaves of the training's; None without `is_output`.

        Raises:
            InvalidInput: as the function `check_evaluates`.
        """
        if not self.is_output:
            return None
        if self.in_evaluation is None or self.module.training:
            return unflatten(results, self.output_spec)
        check_evaluates([self])
        return unflatten([results[at] for at in self.in_evaluation.leaves or ()], self.in_evaluation.spec)

    def arrange(self, output: object) -> object:
        """Return the model's output in the user's containers (see StageProgram)."""
        spec = self.output_spec if self.in_evaluation is None else self.in_evaluation.spec
        return unflatten(flatten(output)[0], spec)

    def replicate(self) -> "ModuleStage":
        """Return a copy with its own parameters and buffers."""
        return replace(self, module=copy.deepcopy(self.module, uncopied(self.module)))


def check_evaluates(programs: Sequence[StageProgram]) -> None:
    """Check that a model's stages compute what it returns in evaluation.

    Raises:
        InvalidInput: they do not.
    """
    for each in programs:
        if isinstance(each, ModuleStage) and each.in_evaluation is not None and each.in_evaluation.leaves is None:
            raise InvalidInput(
                "the model computes other things in evaluation than in training, which its stages do not",
                where="evaluate",
                remedy="Call pipeline.sync_model() on every rank, and evaluate the model itself.",
            )
