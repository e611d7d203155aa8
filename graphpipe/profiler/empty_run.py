"""An operator that computes nothing: what it takes to run any operator by itself."""

from functools import partial

import torch
from torch import Tensor, fx

from graphpipe.graph import Precision
from graphpipe.model.split.glue_module import glue_module
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.torch_private import flatten
from graphpipe.profiler.operators.op_runs import OpRun, call_program

SIGNATURE = "an operator that computes nothing"


def empty_run(samples: int, device: torch.device, precision: Precision) -> OpRun:
    """Return an operator that passes its input on, and the gradient of its output back.

    Its code is entered, and its backward started, as those of any other operator. In a stage of many operators both
    happen once for all of them.

    Args:
        samples: the largest number that it will run on.
        device: of its input.
        precision: of the model that it runs beside.
    """
    graph = fx.Graph()
    rows = graph.placeholder("rows")
    graph.output(((graph.call_method("view_as", (rows, rows)),), ()))  # pyright: ignore[reportArgumentType]
    program = ModuleStage(
        module=glue_module({}, graph, ()),
        model_inputs=(),
        receives={},
        sends={},
        is_output=False,
        parameter_names={},
        buffer_names={},
        arguments=("rows",),
        sent=("passed",),
        output_spec=flatten(())[1],
    )
    inputs: dict[str, Tensor] = {"rows": torch.zeros(samples, 1, device=device)}
    return OpRun(
        op=SIGNATURE,
        call=partial(call_program, program, None, precision),
        inputs=inputs,
        differentiable=frozenset(inputs),
        signature=SIGNATURE,
    )
