"""The values on the edges of a split model under autocast, from a run of its stages on fake tensors."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from graphpipe.graph import Input
from graphpipe.model.fake_copy import fake_copy
from graphpipe.model.function_caches import without_caches
from graphpipe.model.inputs import blank
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.stage_program import ValueSpec
from graphpipe.model.torch_private import fake_mode, flatten

SAMPLES = 2


def autocast_specs(
    programs: Sequence[ModuleStage], inputs: Sequence[Input], device: torch.device, dtype: torch.dtype
) -> tuple[dict[int, tuple[ValueSpec, ...]], tuple[torch.dtype | None, ...]]:
    """Return the values on every edge, by position in `Plan.edges`, with their dtypes under autocast.

    The second result are the dtypes of the leaves of the model's output (see `StageProgram`).

    Args:
        programs: of all stages, in topological order.
        inputs: of the model.
        device: that the stages will run on; autocast differs between types of devices.
        dtype: of matrix products.
    """
    mode = fake_mode()
    with mode:
        values: dict[str, Tensor] = {name: each.to(device) for name, each in blank(inputs, SAMPLES).items()}
    specs: dict[int, tuple[ValueSpec, ...]] = {}
    outputs: tuple[torch.dtype | None, ...] = ()
    for program in programs:
        fake = replace(program, module=fake_copy(program.module, mode, device))
        with without_caches(program.module), mode, torch.no_grad(), torch.autocast(device.type, dtype=dtype):
            sent, output = fake(values)
        values |= sent
        if program.is_output:
            outputs = tuple(each.dtype if isinstance(each, Tensor) else None for each in flatten(output)[0])
        for edge, known in program.sends.items():
            specs[edge] = tuple(replace(spec, dtype=values[spec.name].dtype) for spec in known)
    return dict(sorted(specs.items())), outputs
