"""Temporary memory of operators: bytes that are live only while a forward or backward runs."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor

from graphpipe.costs import Curve, Temporaries
from graphpipe.model.torch_private import DispatchMode, flatten, memory_key
from graphpipe.profiler.operators.op_runs import OpRun
from graphpipe.profiler.saved.op_pass import OpPass, may_release, with_gradients
from graphpipe.profiler.saved.passing_bytes import PassingBytes, passing_bytes


def compiled_temporaries(
    run: OpRun, batch_sizes: Iterable[int], device: torch.device, eager: Temporaries
) -> Temporaries:
    """Return the temporary memory of an operator whose layers run compiled, and what the loss keeps as it was.

    Args:
        run: of the operator. It runs once before it is measured, which compiles it.
        batch_sizes: numbers of samples to measure at; those that the operator refuses are left out.
        device: where it runs.
        eager: what `temporaries` returned before.
    """
    passing, shapes = dict[int, list[PassingBytes]](), dict[int, float]()
    for samples in sorted({*batch_sizes}):
        with suppress(RuntimeError, ValueError), with_gradients(run.parameters):
            for task in _tasks(run, samples):
                task()
            tried = OpPass.of(run, samples, releases=True)
            for task in (tried.forward, tried.seed, tried.input_half):
                task()
            shapes[samples] = tried.half.shapes_bytes
            passing[samples] = passing_bytes(_tasks(run, samples), device)
    forward, backward, first, second = ({samples: each[at] for samples, each in passing.items()} for at in (0, 2, 5, 6))
    return replace(
        eager,
        forward=_through({samples: each.over_end for samples, each in forward.items()}),
        backward=_through({samples: each.over_start for samples, each in backward.items()}),
        input_half=_through({samples: each.over_start for samples, each in first.items()}),
        weight_half=_through({samples: each.over_start for samples, each in second.items()}),
        held_gradients=_through(shapes) if any(shapes.values()) else None,
    )


def temporaries(
    run: OpRun, batch_sizes: Iterable[int], saved_bytes_per_sample: float, saved_bytes_per_forward: float = 0.0
) -> Temporaries:
    """Return the temporary memory of an operator, exact at the batch sizes and linear between them.

    Args:
        run: the same code and inputs that are timed.
        batch_sizes: numbers of samples to measure at; those that the operator refuses are left out.
        saved_bytes_per_sample: what the operator itself saves for its backward. If the operator ends in the loss, the
            rest of what is saved belongs to the loss function.
        saved_bytes_per_forward: what it saves besides, however many samples it has.
    """
    memory_by_samples: dict[int, _Memory] = {}
    for samples in sorted({*batch_sizes}):
        # Batch normalisation refuses one sample. If an operator refuses all sizes, the timing reports it.
        with suppress(RuntimeError, ValueError):
            memory_by_samples[samples] = _measure(run, samples)
    most = max(memory_by_samples, default=0)
    saved = (memory_by_samples[most].saved - saved_bytes_per_forward) / most if most else 0.0
    return Temporaries(
        forward=_through({samples: memory.forward for samples, memory in memory_by_samples.items()}),
        backward=_through({samples: memory.backward for samples, memory in memory_by_samples.items()}),
        input_half=_through({samples: memory.input_half for samples, memory in memory_by_samples.items()}),
        weight_half=_through({samples: memory.weight_half for samples, memory in memory_by_samples.items()}),
        loss_bytes_per_sample=max(0.0, saved - saved_bytes_per_sample) if run.ends else 0.0,
    )


def _tasks(run: OpRun, samples: int) -> list[Callable[[], object]]:
    # Those whose memory is measured: the first, the third, and the last two.
    whole, halved = OpPass.of(run, samples), OpPass.of(run, samples, releases=True)
    first = [whole.forward, whole.seed, whole.backward]
    return [*first, halved.forward, halved.seed, halved.input_half, halved.weight_half]


@dataclass(frozen=True, slots=True)
class _Memory:
    # Bytes: temporary in the forward, the backward and each of its halves, and saved between forward and backward.
    forward: int
    backward: int
    saved: int
    input_half: int
    weight_half: int


def _measure(run: OpRun, samples: int) -> _Memory:
    releases = may_release(run, samples)
    with with_gradients(run.parameters):
        whole, live = OpPass.of(run, samples), LiveBytes()
        with live:
            whole.forward()
        forward, saved = live.peak - live.bytes, live.bytes
        whole.seed()
        backward = _peak(live, whole.backward)
        halved, live = OpPass.of(run, samples, releases=releases), LiveBytes()
        with live:
            halved.forward()
        halved.seed()
        return _Memory(forward, backward, saved, _peak(live, halved.input_half), _peak(live, halved.weight_half))


def _peak(live: "LiveBytes", task: Callable[[], object]) -> int:
    # The most bytes that a task holds beyond what was held before it.
    before = live.bytes
    live.forget_peak()
    with live:
        task()
    return max(0, live.peak - before)


def _through(bytes_by_samples: Mapping[int, float]) -> Curve:
    # Peak memory is a maximum over moments, each linear in the samples, so it is convex. The maximum of the lines
    # through neighbouring points therefore passes through all points.
    points = [*bytes_by_samples.items()]
    if len(points) < 2:
        return Curve(lines=tuple((0.0, count / samples) for samples, count in points if count))
    lines = dict.fromkeys(_line(first, last) for first, last in pairwise(points))
    return Curve(lines=tuple(line for line in lines if any(line)))


def _line(first: tuple[int, float], last: tuple[int, float]) -> tuple[float, float]:
    # A part could be negative only because allocations are padded.
    slope = max(0.0, (last[1] - first[1]) / (last[0] - first[0]))
    return max(0.0, round(last[1] - slope * last[0], 3)), slope


@final
class LiveBytes(DispatchMode):
    """While entered, counts the memory that operations allocate; memory that is freed later is always subtracted.

    Tensors that share memory count once. Scratch memory inside a kernel does not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        """Bytes that are live now."""
        self.peak = 0
        """The most live bytes since `forget_peak`."""
        self._counted = weakref.WeakSet[torch.UntypedStorage]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it allocates."""
        given = {memory_key(tensor) for tensor in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage not in self._counted and memory_key(tensor) not in given:
                self._counted.add(storage)
                self.bytes += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.peak = max(self.peak, self.bytes)
        return result

    def forget_peak(self) -> None:
        """Start a new peak at the bytes that are live now."""
        self.peak = self.bytes

    def _free(self, count: int) -> None:
        self.bytes -= count


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]
