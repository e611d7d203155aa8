"""Profiling a module: its operators' real code, run in order on real inputs, gives the cost table."""

import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from graphpipe.costs import Cluster, CostTable
from graphpipe.costs.profiler import Effort, profile_ops
from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph
from graphpipe.model.capture import capture
from graphpipe.model.inputs import Inputs, name_inputs
from graphpipe.model.profile_runs import op_runs
from graphpipe.model.profile_step import profile_optimizer, profile_task_overhead


def profile(
    model: nn.Module,
    example_inputs: Inputs,
    cluster: Cluster,
    *,
    graph: Graph | None = None,
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer] = torch.optim.AdamW,
    effort: Effort | None = None,
) -> CostTable:
    """Return costs measured on this machine, with as many threads as each rank of the cluster will have.

    The model is left as it was: parameters, gradients, buffers, modes and random state. It runs in the mode it is in
    (train or eval), on the device it is on.

    Args:
        model: a module with real weights.
        example_inputs: real values, as for `capture`; rows are repeated up to the largest batch.
        cluster: of devices of one type, that this machine has.
        graph: what to measure; by default `capture(model, example_inputs)`.
        batch_sizes: numbers of samples to measure at; each curve is a line through them.
        optimizer: builds the optimizer of the training from a list of parameters.
        effort: how long to measure each operator at each batch size.

    Raises:
        InvalidInput: a model on the meta device, a cluster of several device types, batch sizes that are no positive
            integers, or inputs that do not suit the model.
    """
    device_type = _only_type(cluster)
    _check(model, batch_sizes)
    graph = graph or capture(model, example_inputs)
    inputs = name_inputs([each.name for each in graph.inputs], example_inputs)
    values = {name: _repeat_rows(tensor, max(batch_sizes)) for name, tensor in inputs.items()}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with _threads_of_a_rank(cluster) as threads, torch.random.fork_rng():
        effort = effort or Effort(clock=_clock(trainable, threads))
        rows = profile_ops(op_runs(model, graph, cluster, values), device_type, sorted(set(batch_sizes)), effort)
        step = profile_optimizer(trainable, optimizer, effort)
        overhead = profile_task_overhead(effort)
    return CostTable(
        graph_fingerprint=graph.fingerprint,
        rows=rows,
        state_bytes_per_parameter_byte=step.state_bytes_per_parameter_byte,
        optimizer_seconds_per_parameter_byte=step.seconds_per_parameter_byte,
        task_overhead_seconds=overhead,
    )


def _only_type(cluster: Cluster) -> str:
    types = {device.type for device in cluster.devices}
    if len(types) > 1:
        raise InvalidInput(
            f"cluster '{cluster.name}' has devices of types {', '.join(sorted(types))}, this machine measures one",
            remedy="Profile on a cluster of one type, or estimate the costs.",
        )
    return types.pop()


def _check(model: nn.Module, batch_sizes: Sequence[int]) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise InvalidInput(
                f"'{name}' is on the meta device and cannot be run",
                where="profile",
                remedy="Build the model on a real device (a zoo model: device='cpu'), or estimate the costs.",
            )
    if not batch_sizes or any(type(size) is not int or size < 1 for size in batch_sizes):
        raise InvalidInput(f"is {tuple(batch_sizes)}, must be positive integers", where="profile, batch_sizes")


def _repeat_rows(tensor: Tensor, samples: int) -> Tensor:
    rows = torch.arange(samples, device=tensor.device) % len(tensor)
    return tensor.detach()[rows]


@contextmanager
def _threads_of_a_rank(cluster: Cluster) -> Generator[int]:
    before = torch.get_num_threads()
    ranks = sum(device.node == cluster.devices[0].node for device in cluster.devices)
    cores = cluster.cores_per_node or os.cpu_count() or 1
    threads = max(1, cores // ranks)
    torch.set_num_threads(threads)
    try:
        yield threads
    finally:
        torch.set_num_threads(before)


def _clock(parameters: Sequence[Tensor], threads: int) -> Callable[[], float]:
    # One thread's own processor time is not lengthened by what else the machine does; several threads, or an
    # accelerator, can only be timed by the wall clock.
    on_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
    return time.thread_time if on_cpu and threads == 1 else time.perf_counter
