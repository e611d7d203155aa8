"""Recomputation: a stage forgets what it computed, and computes it again when the backward needs it.

Chen et al., Training Deep Nets with Sublinear Memory Cost (2016): a micro-batch in flight keeps what the stage
received instead of what its operations saved.

    keep        F: compute, save                         B: backward
    recompute   F: compute, forget; inputs stay          B: compute again (same random numbers, same buffers), backward
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

Result = TypeVar("Result")


@dataclass(slots=True)
class Forgetful:
    """Computes a module without a graph, and later once more with one, leaving its buffers as if it ran once."""

    module: nn.Module
    changing: frozenset[str] | None = None
    """The buffers that a forward changes, such as BatchNorm's statistics; None before the first."""

    def first(self, compute: Callable[[], Result]) -> tuple[Result, dict[str, Tensor]]:
        """Compute without a graph; return also what the changing buffers held before."""
        buffers = self.module.named_buffers()
        before = {name: held.clone() for name, held in buffers if self.changing is None or name in self.changing}
        with torch.no_grad():
            result = compute()
        if self.changing is None:
            now = dict(self.module.named_buffers())
            self.changing = frozenset(name for name, held in before.items() if not torch.equal(held, now[name]))
        return result, {name: before[name] for name in self.changing}

    def again(self, compute: Callable[[], Result], before: dict[str, Tensor]) -> Result:
        """Compute with a graph and with the buffers of the first time, which are used up; those of now stay."""
        now = {name: self._swap(name, held) for name, held in before.items()}
        try:
            return compute()
        finally:
            for name, held in now.items():
                self._swap(name, held)

    def _swap(self, name: str, value: Tensor) -> Tensor:
        owner, _, short = name.rpartition(".")
        module = self.module.get_submodule(owner)
        held = module.get_buffer(short)
        setattr(module, short, value)
        return held
