"""Recomputation: a stage drops the tensors that its forward saved, and the backward computes them again.

Chen et al., Training Deep Nets with Sublinear Memory Cost (2016): a micro-batch in flight keeps only the inputs of
the stage, or of a region of the stage.

    none        F: compute, save                         B: backward
    full        F: compute without a graph, keep inputs  B: compute again with a graph, backward
    a region    F: compute, drop what the region's       B: backward; before its first read in the region, compute the
                operations save, keep its inputs            region again

The second computation has the same random numbers, buffers and autocast modes as the first.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.saved_tensors import SavedTensor, handle_saved_tensors
from graphpipe.model.split.recompute_region import recompute_regions
from graphpipe.model.stage_program import StageProgram
from graphpipe.plans import Stage
from graphpipe.run.device.rng import RngState
from graphpipe.run.stage.edge_values import enter
from graphpipe.run.stage.offload import Offloading

Result = TypeVar("Result")


@dataclass(slots=True)
class Recomputation:
    """Runs a forward of a module twice, and leaves the module's buffers as after one run."""

    module: nn.Module
    changing: frozenset[str] | None = None
    """Names of the buffers that a forward changes, such as BatchNorm's statistics; None before the first forward."""

    def compute(self, compute: Callable[[], Result]) -> tuple[Result, dict[str, Tensor]]:
        """Compute for the first time. Also return the values that the changing buffers had before."""
        buffers = self.module.named_buffers()
        before = {name: buffer.clone() for name, buffer in buffers if self.changing is None or name in self.changing}
        result = compute()
        if self.changing is None:
            now = dict(self.module.named_buffers())
            self.changing = frozenset(name for name, buffer in before.items() if not torch.equal(buffer, now[name]))
        return result, {name: before[name] for name in self.changing}

    def compute_again(self, compute: Callable[[], Result], before: dict[str, Tensor]) -> Result:
        """Compute again with the buffers of the first time, which are overwritten, then restore the current buffers."""
        now = {name: self._swap(name, buffer) for name, buffer in before.items()}
        try:
            return compute()
        finally:
            for name, buffer in now.items():
                self._swap(name, buffer)

    def _swap(self, name: str, value: Tensor) -> Tensor:
        owner, _, short = name.rpartition(".")
        module = self.module.get_submodule(owner)
        previous = module.get_buffer(short)
        setattr(module, short, value)
        return previous


@dataclass(slots=True)
class RegionRecomputation:
    """Computes a region (see `recompute_region.Keeper`) so that its graph keeps only the region's inputs."""

    name: str
    recomputation: Recomputation
    device: torch.device
    hold: Callable[[Iterable[Tensor]], None] | None = None
    """Called with what the region keeps, so that it is not offloaded."""

    def __call__(self, inner: nn.Module, args: tuple[Any, ...]) -> Any:
        """Compute with a graph that computes the region again when its saved tensors are read."""
        generators = RngState.now(self.device)
        # Clones, because the region may write into its arguments, which are needed again.
        own = [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]
        dropped = DroppedTensors(self.name)
        with handle_saved_tensors(dropped):
            results, before = self.recomputation.compute(lambda: inner(*own))
        kept = tuple(arg.detach().requires_grad_(arg.requires_grad) if isinstance(arg, Tensor) else arg for arg in args)
        if self.hold is not None:
            self.hold(arg for arg in kept if isinstance(arg, Tensor))
        modes, drew = _autocast_modes(self.device), generators if generators.moved() else None

        def compute_again() -> None:
            with ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(mode)
                if drew is not None:
                    stack.enter_context(drew.restored())
                entered = [enter(arg) if isinstance(arg, Tensor) else arg for arg in kept]
                self.recomputation.compute_again(lambda: inner(*entered), before)

        dropped.compute_again = compute_again
        return results


def set_up_regions(program: StageProgram, stage: Stage, device: torch.device, offloading: Offloading | None) -> None:
    """Make the regions of a stage program keep only their inputs, or offload, as the plan's stage requires.

    Raises:
        InvalidInput: the regions of the stage program are not those of the plan's stage.
    """
    regions = {region.name: region for region in recompute_regions(program.module)}
    wanted = () if isinstance(stage.recompute, str) else stage.recompute
    if {*wanted, *stage.offload} != regions.keys():
        raise InvalidInput(
            f"is to recompute or offload {_listed((*wanted, *stage.offload))}, the regions of its program are "
            f"{_listed(regions)}",
            where=f"stage '{stage.name}'",
            remedy="Give the pipeline the model: it makes the programs with the plan's regions.",
        )
    hold = None if offloading is None else offloading.hold
    for name, region in regions.items():
        if name in stage.offload:
            assert offloading is not None
            region.keeper = offloading.compute
        else:
            region.keeper = RegionRecomputation(name, Recomputation(region.inner), device, hold)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


@dataclass(slots=True)
class DroppedTensors:
    """The saved tensors of a region (a `SavedTensorHandler`), dropped when saved, computed again when read."""

    name: str
    """Name of the region, for errors."""
    compute_again: Callable[[], None] | None = None
    """Computes the region again; None until it is set, and after it was called."""
    dropped: list[ref[SavedTensor]] = field(default_factory=list[ref[SavedTensor]])
    """The dropped tensors in the order of saving. Each reference dies when its operation is done."""

    def on_save(self, saved: SavedTensor) -> None:
        """Drop a tensor."""
        saved.tensor = None
        self.dropped.append(ref(saved))

    def on_read(self, saved: SavedTensor) -> None:
        """Compute the region again, unless that is already done."""
        if saved.tensor is None:
            self._restore()

    def _restore(self) -> None:
        compute_again, self.compute_again = self.compute_again, None
        assert compute_again is not None, "a region is computed again only once"
        taken = _TakenTensors()
        with torch.enable_grad(), handle_saved_tensors(taken):
            compute_again()
        if len(taken.tensors) != len(self.dropped):
            raise InvalidInput(
                f"its operations saved {len(self.dropped)} tensors, and {len(taken.tensors)} when computed again",
                where=f"recompute '{self.name}'",
                remedy="A forward that differs from call to call cannot be recomputed: leave it out.",
            )
        for dropped, tensor in zip(self.dropped, taken.tensors, strict=True):
            if (saved := dropped()) is not None:
                saved.tensor = tensor


@dataclass(slots=True)
class _TakenTensors:
    # The saved tensors of a second computation, whose own graph is not used.
    tensors: list[Tensor] = field(default_factory=list[Tensor])

    def on_save(self, saved: SavedTensor) -> None:
        assert saved.tensor is not None, "a region is not computed again inside another one"
        self.tensors.append(saved.tensor.detach())
        saved.tensor = None

    def on_read(self, saved: SavedTensor) -> None:
        raise AssertionError("the graph of the second computation is not used")


def _autocast_modes(device: torch.device) -> list[torch.autocast]:
    """Return the current autocast modes, so that another thread can enter them later."""
    return [
        torch.autocast(kind, dtype=torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind))
        for kind in dict.fromkeys(("cpu", device.type))
    ]
