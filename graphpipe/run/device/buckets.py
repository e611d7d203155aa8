"""Buckets of tensors of one dtype, concatenated so that a collective is called once per bucket."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

BUCKET_BYTES = 32 * 2**20


def buckets(tensors: Iterable[Tensor], limit_bytes: int = BUCKET_BYTES) -> Iterator[list[Tensor]]:
    """Yield the tensors in groups of one dtype, of about `limit_bytes` each; the groups are the same on every rank."""
    by_type = sorted(tensors, key=lambda tensor: str(tensor.dtype))  # stable: order inside a dtype is kept
    for _, alike in groupby(by_type, key=lambda tensor: tensor.dtype):
        bucket: list[Tensor] = []
        filled = 0
        for tensor in alike:
            if bucket and filled + tensor.nbytes > limit_bytes:
                yield bucket
                bucket, filled = [], 0
            bucket.append(tensor)
            filled += tensor.nbytes
        yield bucket


def flatten(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Concatenate the tensors into one vector on `device`."""
    return torch.cat([tensor.detach().reshape(-1).to(device) for tensor in tensors])


def unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy a vector made by `flatten` back into the tensors, in place."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    with torch.no_grad():
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))
