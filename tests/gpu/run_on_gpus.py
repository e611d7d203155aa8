"""Functions that ranks on GPUs run; they are importable, and their arguments are plain values.

Where there are fewer GPUs than ranks, ranks share them. NCCL refuses two ranks on one GPU of one host. So each rank
says that it is another host (`NCCL_HOSTID`), and NCCL sends by sockets.
"""

import os
from typing import Any

import run_scenarios
import torch
import torch.distributed as dist
from run_models import fan_batch


def train(cut: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train on the GPU of this rank, with NCCL between ranks, and return the results on the CPU."""
    found = run_scenarios.train(cut, 2, options | {"device": str(_gpu())})
    return {key: _on_cpu(value) for key, value in found.items()}


def train_bound(cut: str, options: dict[str, Any], store: str) -> dict[str, Any]:
    """Do the same in a world of NCCL that the caller has bound to the GPU of this rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    device = _gpu()
    dist.destroy_process_group()
    dist.init_process_group("nccl", f"file://{store}", rank=rank, world_size=size, device_id=device)
    return train(cut, options)


def step_under_sanitizer(cut: str) -> None:
    """Train two steps and evaluate on one GPU; the CUDA sanitizer, if enabled, raises for a race between streams."""
    pipeline, _ = run_scenarios.build(cut, device="cuda:0")
    for step in range(2):
        pipeline.step(*fan_batch(seed=step))
    pipeline.evaluate(*fan_batch(7))
    torch.cuda.synchronize()


def _gpu() -> torch.device:
    # The GPU of this rank. NCCL reads the variables when this rank makes its first communicator.
    count, rank = torch.cuda.device_count(), dist.get_rank()
    if count < dist.get_world_size():
        os.environ |= {"NCCL_HOSTID": str(rank), "NCCL_SOCKET_IFNAME": "lo"}
    return torch.device("cuda", rank % count)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _on_cpu(each) for key, each in value.items()}
    return value.cpu() if isinstance(value, torch.Tensor) else value
