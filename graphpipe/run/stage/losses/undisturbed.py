"""A forward that runs for another reason than training: it leaves nothing behind, and draws nothing."""

import random
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from graphpipe.model.kept_attributes import attributes_kept, scripted_kept
from graphpipe.model.split.mode_dropout import ModeDropout
from graphpipe.model.split.recompute_region import RecomputeRegion
from graphpipe.model.torch_private import own_buffers
from graphpipe.run.device.fixed_draws import UNLIKELY, FixedDraws
from graphpipe.run.device.rng import preserve_rng_state
from graphpipe.run.device.without_compiler import without_compiler

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_NORMS = (*_BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_COMPILER = "torch._dynamo"

_INSIDE: ContextVar[bool] = ContextVar("whether forwards run for another reason than training", default=False)

Given = TypeVar("Given")


def is_undisturbed() -> bool:
    """Whether forwards run for another reason than training, so that they should note nothing elsewhere."""
    return _INSIDE.get()


@contextmanager
def undisturbed(device: torch.device, *, double: bool = False) -> Generator[None]:
    """Run forwards without gradients, in the precision of their weights, with fixed numbers in place of random ones.

    Numbers of a generator that a forward seeds in each call are no random ones.

    Random generators are as before afterwards. Modules that are compiled run as they are written.

    Args:
        device: where they run.
        double: whether what asks for single precision gets double.
    """
    of_python, of_numpy = random.getstate(), cast("Any", np.random.get_state())
    eager = torch.compiler.set_stance("force_eager") if _COMPILER in sys.modules else nullcontext()
    with (
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
        preserve_rng_state(device),
        cast("AbstractContextManager[None]", eager),
        without_compiler(),  # which the mode of fixed draws asks for
        FixedDraws(double=double, norms=False, reseeded=True),
        warnings.catch_warnings(action="ignore"),  # forwards have given theirs
    ):
        torch.default_generator.manual_seed(UNLIKELY)
        token = _INSIDE.set(True)
        try:
            yield
        finally:
            _INSIDE.reset(token)
            random.setstate(of_python)
            np.random.set_state(of_numpy)


@contextmanager
def as_before(module: nn.Module) -> Generator[None]:
    """Let a forward change copies of buffers, and undo what it does to attributes.

    Dropout is off. Norms over the batch use the statistics that they hold, and pass on what they get if they hold none:
    a pipeline computes them for each micro-batch, as the limits say.
    """
    parts = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
    off = [part for part in parts if isinstance(part, (*_DROPOUTS, *_NORMS)) and part.training]
    regions = [(part, part.keeper) for part in parts if isinstance(part, RecomputeRegion)]
    drops = [(part, part.probability) for part in parts if isinstance(part, ModeDropout)]
    copies = {id(buffer): buffer.clone() for buffer in module.buffers()}
    with attributes_kept(module), scripted_kept(module), _scripted_norms_off(module):
        for buffers in map(own_buffers, parts):
            buffers.update({name: copies[id(each)] for name, each in buffers.items() if each is not None})
        for part in off:
            part.training = False
            if isinstance(part, _BATCH_NORMS) and part.running_mean is None:
                vars(part)["forward"] = _unchanged
        for part, _ in drops:
            part.probability = 0.0
        for region, _ in regions:
            region.keeper = None  # nothing is recomputed or offloaded
        try:
            yield
        finally:
            for part in off:
                part.training = True
            for part, probability in drops:
                part.probability = probability
            for region, keeper in regions:
                region.keeper = keeper


@contextmanager
def _scripted_norms_off(module: nn.Module) -> Generator[None]:
    names = {kind.__name__ for kind in (*_DROPOUTS, *_NORMS)}
    scripted = [part for part in module.modules() if isinstance(part, torch.jit.ScriptModule)]
    off = [part for part in scripted if part.original_name in names and part.training]
    try:
        for part in off:
            part.training = False
        yield
    finally:
        for part in off:
            part.training = True


def doubled(value: Tensor) -> Tensor:
    """Return a tensor in double precision, if it is floating-point."""
    return value.detach().double() if value.is_floating_point() else value.detach()


def in_double(module: nn.Module) -> tuple[Callable[..., Any], dict[str, Tensor]]:
    """Return a function that calls a module with copies of its tensors in double precision, and the copies that train.

    Args:
        module: of a stage. The copies are by the names of its parameters.
    """
    held = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    copies = {id(tensor): doubled(tensor).clone().requires_grad_(tensor.requires_grad) for _, tensor in held}
    named = {name: copies[id(tensor)] for name, tensor in held}
    buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)}

    def call(*args: Tensor) -> Any:
        fresh = {name: value.clone() if name in buffers else value for name, value in named.items()}
        return torch.func.functional_call(module, fresh, args)

    return call, {name: named[name] for name, each in module.named_parameters() if each.requires_grad}


def _unchanged(value: Given, *_: object, **__: object) -> Given:
    return value
