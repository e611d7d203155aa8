"""Short descriptions of weights, by which ranks find out that they do not have the same ones."""

from collections.abc import Mapping
from hashlib import blake2b

import torch
from torch import Tensor, nn

_SIGNS = 7
"""The period of the factors that elements are multiplied by. It divides few shapes."""
_CHUNK = 2 * _SIGNS * 2**16
"""Elements that are summed at a time, because torch makes 8-byte integers of all of them first."""
_APART = 1e-4
"""Differences of this share of a tensor's norm are no rounding: replicas on different GPUs may round differently."""


def digest_of(module: nn.Module) -> str:
    """Return 8 hexadecimal digits of all parameters and buffers. One pass over the memory, a part at a time.

    Equal values have equal digests on every machine, because integers are summed.
    """
    state = blake2b(digest_size=4)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.device.type != "meta" and tensor.numel():
            state.update(_sums(tensor.detach()))
    return state.hexdigest()


def _sums(tensor: Tensor) -> bytes:
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    whole = plain.to_dense() if plain.layout is not torch.strided else plain
    bits = whole.contiguous().view(-1).view(kinds[whole.element_size()])
    # The sum does not see an exchange of elements. The sum of every other one does, nearly always.
    sums = torch.zeros(3, dtype=torch.int64, device=bits.device)
    for chunk in bits.split(_CHUNK):
        sums += torch.stack([chunk[::period].sum(dtype=torch.int64) for period in (1, 2, _SIGNS)])
    return " ".join(map(str, sums.tolist())).encode()


def summary_of(parameters: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Return, by name, a sum of each tensor's elements with different factors, and its norm."""
    return {name: _summary(each.detach()) for name, each in parameters.items()}


def _summary(tensor: Tensor) -> list[float]:
    flat = tensor.float().reshape(-1)
    parts = [flat[start::_SIGNS].sum(dtype=torch.float64).item() for start in range(_SIGNS)]
    mixed = sum((start + 1) * part for start, part in enumerate(parts))
    return [mixed, torch.linalg.vector_norm(flat).item()]


def differing(one: Mapping[str, list[float]], other: Mapping[str, list[float]]) -> str:
    """Return the first tensor whose summaries differ by more than rounding; empty if none does."""
    for name, (mixed, norm) in one.items():
        theirs, their_norm = other[name]
        if not abs(mixed - theirs) + abs(norm - their_norm) <= _APART * max(norm, their_norm) + 1e-12:
            return name
    return ""
