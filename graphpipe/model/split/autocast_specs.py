"""What crosses the edges of a split model under autocast: found by running its stages on tensors without data."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from graphpipe.graph import Input
from graphpipe.model.capture.module_graph.module_graph import fake_twin
from graphpipe.model.inputs import blank
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.stage_program import ValueSpec
from graphpipe.model.torch_private import fake_mode

SAMPLES = 2


def autocast_specs(
    programs: Sequence[ModuleStage], inputs: Sequence[Input], device: torch.device, dtype: torch.dtype
) -> dict[int, tuple[ValueSpec, ...]]:
    """Return the values on every edge, by position in `Plan.edges`, with their dtypes under autocast.

    Args:
        programs: of all stages, in topological order.
        inputs: of the model.
        device: where the stages will run: autocast is not the same everywhere.
        dtype: that matrix products are computed in.
    """
    mode = fake_mode()
    with mode:
        values: dict[str, Tensor] = {name: each.to(device) for name, each in blank(inputs, SAMPLES).items()}
    specs: dict[int, tuple[ValueSpec, ...]] = {}
    for program in programs:
        twin = replace(program, module=fake_twin(program.module, mode, device))
        with mode, torch.no_grad(), torch.autocast(device.type, dtype=dtype):
            values |= twin(values)[0]
        for edge, sent in program.sends.items():
            specs[edge] = tuple(replace(spec, dtype=values[spec.name].dtype) for spec in sent)
    return dict(sorted(specs.items()))
