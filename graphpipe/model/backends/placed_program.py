"""A stage that runs on several backends, a region after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.backends.backend import Region
from graphpipe.model.backends.eager import EAGER
from graphpipe.model.backends.registry import find_backend
from graphpipe.model.quiet import quiet_compiler
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.stage_program import StageProgram, ValueSpec


@dataclass(slots=True, kw_only=True)
class PlacedRegion:
    """A region on its backend. It is compiled for one number of samples, and runs eagerly for any other."""

    program: ModuleStage
    backend: str
    samples: int
    compiled: Region | None = None
    refusal: InvalidInput | None = None
    """Why the backend cannot compile the region, once this is known."""

    def run(self, values: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], object]:
        """Compute the region, and compile it before its first run.

        Raises:
            InvalidInput: the backend cannot compile it.
        """
        arguments = [values[name] for name in self.program.arguments]
        if self.backend == EAGER.name or arguments[0].shape[0] != self.samples:
            return self.program(values)
        sent, results = self._compiled(arguments)(*arguments)
        return dict(zip(self.program.sent, sent, strict=True)), self.program.output(results)

    def _compiled(self, arguments: Sequence[Tensor]) -> Region:
        if self.refusal is not None:
            raise self.refusal
        try:
            if self.compiled is None:
                self.compiled = compiled_region(self.program, self.backend, arguments)
        except InvalidInput as error:
            self.refusal = error
            raise
        return self.compiled


def compiled_region(program: ModuleStage, backend: str, arguments: Sequence[Tensor]) -> Region:
    """Compile a region for example arguments.

    Raises:
        InvalidInput: the backend is missing or cannot compile it.
    """
    program.module.eval()
    try:
        with torch.no_grad(), quiet_compiler():
            return find_backend(backend).compile(program.module, arguments)
    except InvalidInput:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        what = f"cannot compile a region: {type(error).__name__}: {text}"
        raise InvalidInput(what, where=f"backend '{backend}'", remedy="Place the model again.") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedProgram:
    """A `StageProgram` that runs regions in order. It only does forwards."""

    whole: StageProgram
    """The same stage without backends."""
    regions: tuple[PlacedRegion, ...]
    module: nn.Module = field(init=False)
    """A module of everything that the regions run."""

    def __post_init__(self) -> None:
        every = [self.whole.module, *(region.program.module for region in self.regions)]
        object.__setattr__(self, "module", nn.ModuleList(every))

    @property
    def model_inputs(self) -> tuple[str, ...]:
        """See StageProgram."""
        return tuple(dict.fromkeys(name for region in self.regions for name in region.program.model_inputs))

    @property
    def receives(self) -> Mapping[int, tuple[ValueSpec, ...]]:
        """See StageProgram."""
        return self.whole.receives

    @property
    def sends(self) -> Mapping[int, tuple[ValueSpec, ...]]:
        """See StageProgram."""
        return self.whole.sends

    @property
    def is_output(self) -> bool:
        """See StageProgram."""
        return self.whole.is_output

    @property
    def output_dtypes(self) -> tuple[torch.dtype | None, ...]:
        """See StageProgram."""
        return self.whole.output_dtypes

    @property
    def parameter_names(self) -> Mapping[str, str]:
        """See StageProgram."""
        return self.whole.parameter_names

    @property
    def buffer_names(self) -> Mapping[str, str]:
        """See StageProgram."""
        return self.whole.buffer_names

    def __call__(self, values: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], object]:
        """Compute the stage (see StageProgram)."""
        known, result = dict(values), cast(object, None)
        for region in self.regions:
            sent, output = region.run(known)
            known |= sent
            result = output if region.program.is_output else result
        return {it.name: known[it.name] for specs in self.sends.values() for it in specs}, result

    def arrange(self, output: object) -> object:
        """See StageProgram."""
        return self.whole.arrange(output)

    def replicate(self) -> StageProgram:
        """Return the stage without backends, because compiled regions hold their parameters."""
        return self.whole.replicate()
