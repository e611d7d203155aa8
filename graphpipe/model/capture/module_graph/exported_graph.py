"""A skeleton through torch.export: submodules kept whole become calls, the forwards in between become glue."""

import inspect
import logging
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, ShapesCollection

from graphpipe.model.capture.module_graph.module_graph import Skeleton
from graphpipe.model.capture.module_graph.translation import Translation
from graphpipe.model.torch_private import is_mutable, recording

_NOISY = ("torch.fx", "torch.export", "torch._export", "torch._dynamo", "torch._subclasses")
"""Loggers that tell at length, some with a traceback, what an exception tells as well."""


def export_skeleton(
    twin: nn.Module, paths: Sequence[str], inputs: Mapping[str, Tensor], outputs: Sequence[str] = ()
) -> Skeleton:
    """Return the skeleton of `twin` whose submodules `paths` are kept whole.

    Args:
        twin: the model on fake tensors.
        paths: fully qualified names of the submodules to keep whole.
        inputs: fake model inputs by name; their first dimensions are traced as one symbol.
        outputs: the entries of what it returns that are wanted; all of it without.

    Raises:
        CannotFollow: a forward does what glue cannot express.
        InvalidInput: it returns no such output.
        Exception: whatever torch.export raises.
    """
    with recording(twin, paths) as calls, quiet():
        program = _export(twin, inputs)
        if any(is_mutable(node.target) for node in program.graph.nodes):
            program = program.run_decompositions({})  # in-place operators become functions
    return Translation(program, calls, list(inputs), outputs).skeleton()


def _export(twin: nn.Module, inputs: Mapping[str, Tensor]) -> ExportedProgram:
    shapes, batch = ShapesCollection(), Dim("batch", min=2)
    for tensor in inputs.values():
        shapes[tensor] = {0: batch}
    named = all(_accepts(twin, name) for name in inputs)
    args, kwargs = ((), dict(inputs)) if named else (tuple(inputs.values()), {})
    dynamic = shapes.dynamic_shapes(twin, args, kwargs)
    return torch.export.export(
        twin,
        args,
        kwargs,
        dynamic_shapes=dynamic,
        strict=False,
        prefer_deferred_runtime_asserts_over_guards=True,
    )


def _accepts(module: nn.Module, name: str) -> bool:
    parameter = inspect.signature(module.forward).parameters.get(name)
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


@contextmanager
def quiet() -> Generator[None]:
    """Keep torch from logging and printing its troubles at length: what matters of them is in the exception."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
