"""Recomputation: a stage forgets what it computed, and computes it again when the backward needs it.

Chen et al., Training Deep Nets with Sublinear Memory Cost (2016): a micro-batch in flight keeps what the stage (or the
region of a stage) received instead of what its operations saved.

    none        F: compute, save                         B: backward
    full        F: compute, forget; inputs stay          B: compute again (same random numbers, same buffers), backward
    a region    F: compute, forget what the region's     B: backward; where it comes to the region, compute that again
                operations saved; its inputs stay           (same random numbers, same buffers), backward
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from graphpipe.errors import InvalidInput
from graphpipe.model.split.recompute_region import regions_of
from graphpipe.model.stage_program import StageProgram
from graphpipe.plans import Stage
from graphpipe.run.device.rng import Generators
from graphpipe.run.stage.edge_values import enter
from graphpipe.run.stage.releasable_tensors import Box

Result = TypeVar("Result")


@dataclass(slots=True)
class Forgetful:
    """Computes a module, and later once more, leaving its buffers as if it ran once."""

    module: nn.Module
    changing: frozenset[str] | None = None
    """The buffers that a forward changes, such as BatchNorm's statistics; None before the first."""

    def first(self, compute: Callable[[], Result]) -> tuple[Result, dict[str, Tensor]]:
        """Compute; return also what the changing buffers held before."""
        buffers = self.module.named_buffers()
        before = {name: held.clone() for name, held in buffers if self.changing is None or name in self.changing}
        result = compute()
        if self.changing is None:
            now = dict(self.module.named_buffers())
            self.changing = frozenset(name for name, held in before.items() if not torch.equal(held, now[name]))
        return result, {name: before[name] for name in self.changing}

    def again(self, compute: Callable[[], Result], before: dict[str, Tensor]) -> Result:
        """Compute with the buffers of the first time, which are used up; those of now stay."""
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


@dataclass(slots=True)
class RegionKeeper:
    """Computes a region (see `model.region.Keeper`) whose graph keeps the region's inputs alone."""

    name: str
    forgetful: Forgetful
    device: torch.device

    def __call__(self, inner: nn.Module, args: tuple[Any, ...]) -> Any:
        """Compute with a graph that computes again when its saved tensors are read."""
        generators = Generators.now(self.device)
        # The region may write into its arguments, which are needed once more.
        own = [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]
        rerun = _Rerun(self.name)
        with saved_tensors_hooks(rerun.put, rerun.read):
            results, before = self.forgetful.first(lambda: inner(*own))
        kept = tuple(arg.detach().requires_grad_(arg.requires_grad) if isinstance(arg, Tensor) else arg for arg in args)
        modes, drew = _autocast_modes(self.device), generators if generators.moved() else None

        def again() -> None:
            with ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(mode)
                if drew is not None:
                    stack.enter_context(drew.put_back())
                entered = [enter(arg) if isinstance(arg, Tensor) else arg for arg in kept]
                self.forgetful.again(lambda: inner(*entered), before)

        rerun.again = again
        return results


def keep_regions(program: StageProgram, stage: Stage, device: torch.device) -> None:
    """Let the regions of a stage program keep what they read alone, as its stage says.

    Raises:
        InvalidInput: the stage program has other regions.
    """
    found = {region.name: region for region in regions_of(program.module)}
    wanted = () if isinstance(stage.recompute, str) else stage.recompute
    if set(wanted) != found.keys():
        raise InvalidInput(
            f"is to recompute {_listed(wanted)}, the regions of its program are {_listed(found)}",
            where=f"stage '{stage.name}'",
            remedy="Give the pipeline the model: it makes the programs with the plan's regions.",
        )
    for name, region in found.items():
        region.keeper = RegionKeeper(name, Forgetful(region.inner), device)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


@dataclass(slots=True)
class _Rerun:
    """One computation of a region: what autograd saves is not kept; the first read computes all of it again."""

    name: str
    again: Callable[[], None] | None = None
    """Computes the region once more; None before it is known, and after it was called."""
    boxes: list[ref[Box]] = field(default_factory=list[ref[Box]])
    """The graph's, in the order of saving; each goes when its operation is done."""

    def put(self, tensor: Tensor) -> Box:
        box = Box(None)
        self.boxes.append(ref(box))
        return box

    def read(self, box: Box) -> Tensor:
        if box.tensor is None:
            self._fill()
        assert box.tensor is not None, "an operation saved the same the second time"
        return box.tensor

    def _fill(self) -> None:
        again, self.again = self.again, None
        assert again is not None, "a region is computed again once"
        saved: list[Tensor] = []
        with torch.enable_grad(), saved_tensors_hooks(lambda tensor: saved.append(tensor.detach()), _unread):
            again()
        if len(saved) != len(self.boxes):
            raise InvalidInput(
                f"its operations saved {len(self.boxes)} tensors, and {len(saved)} when computed again",
                where=f"recompute '{self.name}'",
                remedy="A forward that differs from call to call cannot be recomputed: leave it out.",
            )
        for held, tensor in zip(self.boxes, saved, strict=True):
            if (box := held()) is not None:
                box.tensor = tensor


def _unread(_: object) -> Tensor:
    raise AssertionError("the graph of the second computation is not used")


def _autocast_modes(device: torch.device) -> list[torch.autocast]:
    """Return the autocast modes of now, to be entered by another thread or at another time."""
    return [
        torch.autocast(kind, dtype=torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind))
        for kind in dict.fromkeys(("cpu", device.type))
    ]
