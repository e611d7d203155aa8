"""Buffers that a loss changes in each call, such as a moving centre of the outputs."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from graphpipe.run.stage.losses.weighted_loss import WeightedLoss
from graphpipe.user_frames import warn_user

_REMEDY = (
    "A pipeline calls it for each micro-batch, plain PyTorch for each mini-batch. Give the output stage the whole "
    "mini-batch (whole_batch=[...]), or change the buffer between steps."
)


@contextmanager
def warning_of_changes(loss_fn: Callable[[Any, Any], Any]) -> Generator[None]:
    """Warn if a loss that is a module changes a buffer while inside.

    Args:
        loss_fn: of the pipeline. Other functions are not looked at.
    """
    holder = loss_fn.function if isinstance(loss_fn, WeightedLoss) else loss_fn
    if not isinstance(holder, nn.Module):
        yield
        return
    before = {name: each.clone() for name, each in holder.named_buffers()}
    yield
    now = dict(holder.named_buffers())
    for name, each in before.items():
        if name in now and not torch.equal(each, now[name]):
            warn_user(f"loss_fn: {type(holder).__name__} changes the buffer '{name}' in each call. {_REMEDY}")
            return
