"""Profiles a module: runs its operators in order on real inputs, and returns the cost table."""

import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable, OpCost
from graphpipe.costs.ranks.degrees import operators_by_degree, with_degrees
from graphpipe.devices.registry import kind_of
from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph
from graphpipe.model.capture.capture import Captured, capture_nodes
from graphpipe.model.compiled.stage_compiler import StageCompiler
from graphpipe.model.compiled.torch_compiler import each_size
from graphpipe.model.hidden.compiled_modules import eagerly
from graphpipe.model.inputs import Inputs, name_inputs
from graphpipe.model.split.split import capture_for
from graphpipe.model.torch_private import flatten, unflatten
from graphpipe.profiler.compiled_layers import CompiledLayers
from graphpipe.profiler.contention import MOST_PROCESSES_PER_CORE, under_contention
from graphpipe.profiler.effort import Effort
from graphpipe.profiler.known_costs import KnownCosts
from graphpipe.profiler.operator_measuring import OperatorMeasuring, ProfiledModel
from graphpipe.profiler.operators.op_runs import Criterion
from graphpipe.profiler.profiled_device import profiled_device
from graphpipe.profiler.step_overheads import optimizer_of_copies
from graphpipe.waiting import waiting

_EVICTING_BYTES = 4 * 2**20
"""More than the caches of one core hold, and less than the cache that all cores share."""

_EVICTING_DEVICE_BYTES = 256 * 2**20
"""More than the caches of a GPU hold: an H100 has 50 MiB."""
_WARM_UP_SECONDS = 0.3
"""A GPU that was idle needs about this long for its full frequency."""


def profile(
    model: nn.Module,
    example_inputs: Inputs,
    cluster: Cluster,
    *,
    graph: Graph | None = None,
    captured: Captured | None = None,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    targets: Any = None,
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer] = torch.optim.AdamW,
    tensor: Sequence[int] = (1,),
    effort: Effort | None = None,
    cache: Path | None = None,
    compile: bool = False,
) -> CostTable:
    """Return costs measured on this machine, with as many threads as each rank of the cluster will have.

    Operators run on the device that the cluster names (see `profiled_device`), wherever the model is. If each rank has
    one core or less, copies of this process compute at the same time, one for each other rank.

    Parameters, gradients, buffers, modes and random state of the model do not change. It runs in its present mode
    (train or eval), and in the precision that its graph was captured for.

    Args:
        model: a module. If it is on the meta device, one operator at a time has data, with weights of the usual size,
            because times do not depend on their values.
        example_inputs: real values, as for `capture`; rows are repeated up to the largest batch.
        cluster: its devices are of one type, which this machine has.
        graph: what to measure; by default `capture(model, example_inputs)`.
        captured: the capture behind the graph, if it is at hand; otherwise the model is captured.
        loss_fn: of the training: takes the model's output and targets. Its time is added to the operator that computes
            the model's output. If None, the loss costs nothing.
        targets: for the loss: a tensor, or tuples, lists and dicts of tensors, with as many samples as the inputs.
        batch_sizes: numbers of samples to measure at; each curve is fitted to them.
        optimizer: builds the optimizer of the training from a list of parameters.
        tensor: numbers of devices that share a replica. Operators that several can share are also measured as the first
            of these runs them, which computes its part and exchanges nothing. The graph must have layouts
            (`with_shards`).
        effort: how long to measure each operator at each batch size.
        cache: a folder with the costs of operators that were measured before, which also gets new ones. None: every
            operator is measured.
        compile: measure layers as stages run them that are compiled (`PipelineOptions(compile=True)`), for each batch
            size. Operators without submodules are measured eagerly. Compiling takes seconds for each kind and size.

    Raises:
        InvalidInput: a cluster of several device types or of one that this machine does not have, batch sizes that are
            not positive integers, inputs that do not fit the model, or a number of devices that can share no operator.
    """
    device_type, device = cluster.devices[0].type, profiled_device(cluster)
    _check("batch_sizes", batch_sizes)
    _check("tensor", tensor)
    if captured is None:
        with waiting("capturing the model"):
            captured = capture_nodes(model, example_inputs) if graph is None else capture_for(model, graph)
    graph = captured.graph
    degrees = operators_by_degree(graph, tensor)
    inputs = name_inputs(graph.input_layout, example_inputs)
    values = {name: _repeat_rows(tensor, max(batch_sizes)) for name, tensor in inputs.items()}
    criterion = None if loss_fn is None else Criterion(loss_fn, _repeat_all(targets, max(batch_sizes), device))
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with _threads_of_a_rank(cluster) as threads, _random_state_kept(device), each_size() if compile else eagerly(model):
        effort = _on_device(effort or _effort(device, threads), device)
        sizes = sorted(set(batch_sizes))
        copies = _copies(cluster, threads, device)
        devices = [str(device), kind_of(device).describe(device)]
        precision = [] if captured.precision == "fp32" else [captured.precision]
        circumstances = [device_type, sizes, threads, copies, devices, effort.amounts, *precision]
        circumstances += ["compiled"] if compile else []
        known = {
            ranks: KnownCosts(cache, [*circumstances, *([f"1 of {ranks} ranks"] if ranks > 1 else [])], loss_fn)
            for ranks in degrees
        }
        subject = ProfiledModel(
            model=model, captured=captured, cluster=cluster, values=values, criterion=criterion, device=device
        )
        layers = CompiledLayers(StageCompiler(sizes_vary=False), device) if compile else None
        measuring, rows = OperatorMeasuring(subject, sizes, effort, known, layers), dict[int, tuple[OpCost, ...]]()
        count = sum(degrees.values())
        with waiting(f"profiling {count} operators") as advance, under_contention(copies, measuring.in_a_copy):
            for ranks in degrees:
                before = sum(map(len, rows.values()))
                rows[ranks] = measuring.rows(ranks, lambda done, before=before: advance((before + done) / count))
            step = measuring.step(optimizer_of_copies(trainable, optimizer, device))
    for ranks, found in rows.items():
        known[ranks].keep(found)
    return CostTable(
        graph_fingerprint=graph.fingerprint,
        rows=with_degrees(rows),
        state_bytes_per_parameter_byte=step.optimizer.state_bytes_per_parameter_byte,
        optimizer_seconds_per_parameter_byte=step.optimizer.seconds_per_parameter_byte,
        task_overhead_seconds=step.task_overhead_seconds,
    )


def _check(name: str, numbers: Sequence[int]) -> None:
    if not numbers or any(type(number) is not int or number < 1 for number in numbers):
        raise InvalidInput(f"is {tuple(numbers)}, must be positive integers", where=f"profile, {name}")


def _repeat_rows(tensor: Tensor, samples: int) -> Tensor:
    rows = torch.arange(samples, device=tensor.device) % len(tensor)
    return tensor.detach()[rows]


def _repeat_all(targets: object, samples: int, device: torch.device) -> Any:
    leaves, spec = flatten(targets)
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or not leaf.ndim:
            raise InvalidInput(
                f"hold a {type(leaf).__name__}, must be tensors whose first dimension is the samples",
                where="profile, targets",
            )
    return unflatten([_repeat_rows(leaf, samples).to(device) for leaf in leaves], spec)


@contextmanager
def _random_state_kept(device: torch.device) -> Generator[None]:
    # Without `devices`, torch forks the generators of all GPUs, and warns of it.
    kind = kind_of(device)
    own = kind.random_state(device)
    with torch.random.fork_rng(devices=[]):
        yield
    if own is not None:
        kind.set_random_state(device, own)


@contextmanager
def _threads_of_a_rank(cluster: Cluster) -> Generator[int]:
    before = torch.get_num_threads()
    threads = max(1, _cores(cluster) // _ranks(cluster))
    torch.set_num_threads(threads)
    try:
        yield threads
    finally:
        torch.set_num_threads(before)


def _ranks(cluster: Cluster) -> int:
    return sum(device.node == cluster.devices[0].node for device in cluster.devices)


def _cores(cluster: Cluster) -> int:
    return cluster.cores_per_node or os.cpu_count() or 1


def _copies(cluster: Cluster, threads: int, device: torch.device) -> int:
    # A copy of this process has neither torch's threads nor the accelerator.
    if cluster.cores_per_node is None or threads > 1 or not kind_of(device).on_host:
        return 0
    return min(_ranks(cluster), MOST_PROCESSES_PER_CORE * _cores(cluster)) - 1


def _effort(device: torch.device, threads: int) -> Effort:
    # The processor time of one thread does not include waiting for other processes. Several threads can only be timed
    # by the wall clock.
    on_host = kind_of(device).on_host
    evicting = torch.zeros(_EVICTING_BYTES if on_host else _EVICTING_DEVICE_BYTES, dtype=torch.uint8, device=device)
    return Effort(
        clock=time.thread_time if on_host and threads == 1 else time.perf_counter,
        warm_up_seconds=0.0 if on_host else _WARM_UP_SECONDS,
        between=lambda: evicting.bitwise_not_(),
    )


def _on_device(effort: Effort, device: torch.device) -> Effort:
    """Return the effort with the clock of a device that runs behind the host. It does not wait for each operator."""
    kind = kind_of(device)
    return effort if kind.on_host else replace(effort, device_clock=kind.clock(device))
