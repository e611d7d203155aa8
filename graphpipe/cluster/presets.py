"""Clusters by name: `local:4`, `summit:8x4`, `dgx-a100:2x8`, `dgx-h100:4x8`."""

import math
import os
import re
from dataclasses import dataclass

from graphpipe.cluster.device import ClusterFields, Device, DeviceType, HostMemory, Link
from graphpipe.errors import InvalidInput, nearest

MOST_DEVICES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """One kind of node: the devices in it and the links of each device."""

    device: DeviceType
    intra_node: Link
    inter_node: Link
    host_memory_bytes: float


# Peaks and memory sizes are those of NVIDIA's data sheets for the SXM modules, dense, without sparsity:
#     V100 (DS-08463-001 to -003, and the V100 whitepaper WP-08608)    fp32 15.7    fp16 125 TFLOP/s, no units for bf16
#     A100 80GB (data sheet of June 2021, and whitepaper)              fp32 19.5    fp16 and bf16 312    (TF32 156)
#     H100 SXM5 (data sheet of 2023, halved where it counts sparsity)  fp32 67      fp16 and bf16 989    (TF32 495)
# fp32 is torch's default, which does not round products to TensorFloat-32. Bandwidths are about 0.85
# of the nominal ones, which is what copy benchmarks reach. The nominal bandwidths of memory are 900, 2039 and 3350
# GB/s, of NVLink (per direction between two devices) 50 (two bricks on Summit), 300 and 450 GB/s, and of the network
# (per device) 100, 200 and 400 Gb/s. To the memory of its node a device has 50 (two bricks on Summit), 16 and 32 GB/s
# per direction (on the DGX machines two devices share 16 lanes of PCIe 4 or 5). Latencies and launch times are common
# figures for NCCL and CUDA. half_peak_flops is an assumption about matrix products: a V100 reaches two thirds of its
# peak with 1024 x 1024 x 1024 (2.1 GFLOP), and faster devices need products larger in the same proportion (64 us at
# peak, in every precision). These figures were not fitted to the published results of any planner.
# A device has one port to a switch, which all its messages share: to NVSwitch in the DGX machines, and to the network
# everywhere. On Summit two bricks of NVLink lead from a GPU to each of the others, so it shares nothing inside a node.
# Workspaces are those of cuBLAS in torch (notes/cuda, "cuBLAS workspaces": :4096:2:16:8, on Hopper 32 MiB). Contexts,
# communicators (the buffers of NCCL's channels) and what the allocator reserves are assumptions. For `summit` they are
# all 0, as in the published setting, which counts only the memory of models.
_MACHINES = {
    "summit": _Machine(
        device=DeviceType(
            name="v100",
            memory_bytes=16e9,
            peak_flops_per_second=15.7e12,
            fp16_peak_flops_per_second=125e12,
            memory_bytes_per_second=765e9,
            launch_seconds=5e-6,
            half_peak_flops=1e9,
            host_bandwidth_bytes_per_second=43e9,
        ),
        intra_node=Link(latency_seconds=8e-6, bandwidth_bytes_per_second=43e9),
        inter_node=Link(latency_seconds=15e-6, bandwidth_bytes_per_second=10.6e9, shared=True),
        host_memory_bytes=512e9,
    ),
    "dgx-a100": _Machine(
        device=DeviceType(
            name="a100",
            memory_bytes=80e9,
            peak_flops_per_second=19.5e12,
            bf16_peak_flops_per_second=312e12,
            fp16_peak_flops_per_second=312e12,
            memory_bytes_per_second=1730e9,
            launch_seconds=5e-6,
            half_peak_flops=1.25e9,
            host_bandwidth_bytes_per_second=13e9,
            context_bytes=500e6,
            workspace_bytes=2 * 8519680,
            communicator_bytes=100e6,
            reserved_share=0.05,
        ),
        intra_node=Link(latency_seconds=8e-6, bandwidth_bytes_per_second=255e9, shared=True),
        inter_node=Link(latency_seconds=15e-6, bandwidth_bytes_per_second=21e9, shared=True),
        host_memory_bytes=2e12,
    ),
    "dgx-h100": _Machine(
        device=DeviceType(
            name="h100",
            memory_bytes=80e9,
            peak_flops_per_second=67e12,
            bf16_peak_flops_per_second=989e12,
            fp16_peak_flops_per_second=989e12,
            fp8_peak_flops_per_second=1979e12,
            memory_bytes_per_second=2850e9,
            launch_seconds=5e-6,
            half_peak_flops=4.3e9,
            host_bandwidth_bytes_per_second=27e9,
            context_bytes=500e6,
            workspace_bytes=2 * 32 * 2**20,
            communicator_bytes=100e6,
            reserved_share=0.05,
        ),
        intra_node=Link(latency_seconds=8e-6, bandwidth_bytes_per_second=380e9, shared=True),
        inter_node=Link(latency_seconds=15e-6, bandwidth_bytes_per_second=42e9, shared=True),
        host_memory_bytes=2e12,
    ),
}


def preset_fields(spec: str) -> ClusterFields:
    """Return the fields of the cluster of a preset: `local:PROCESSES`, or `NAME:NODESxDEVICES`.

    Raises:
        InvalidInput: an unknown preset (the nearest name is given), or a malformed size.
    """
    name, _, size = spec.partition(":")
    if name == "local":
        return _local(spec, _sizes(spec, size, r"([1-9][0-9]{0,9})", "local:PROCESSES, such as local:4")[0])
    if name not in _MACHINES:
        raise InvalidInput(f"unknown cluster preset '{name}'", remedy=nearest(name, ["local", *_MACHINES]))
    sizes = _sizes(spec, size, r"([1-9][0-9]{0,9})x([1-9][0-9]{0,9})", f"{name}:NODESxDEVICES, such as {name}:2x4")
    machine = _MACHINES[name]
    return ClusterFields(
        name=spec,
        device_types=(machine.device,),
        devices=_devices(machine.device.name, *sizes),
        intra_node=machine.intra_node,
        inter_node=machine.inter_node,
        host_memory=tuple(HostMemory(node=f"node{at}", bytes=machine.host_memory_bytes) for at in range(sizes[0])),
    )


def preset_forms() -> list[str]:
    """Return an example of every preset."""
    return ["local:4", *(f"{name}:2x4" for name in _MACHINES)]


def accelerator_presets() -> dict[str, str]:
    """Return the preset of each type of device. The type is part of the names that such devices give themselves."""
    return {machine.device.name: preset for preset, machine in _MACHINES.items()}


def _sizes(spec: str, size: str, pattern: str, form: str) -> list[int]:
    match = re.fullmatch(pattern, size)
    if match is None:
        raise InvalidInput(f"'{spec}' has no size of the form {form}", where="cluster")
    sizes = [int(number) for number in match.groups()]
    if math.prod(sizes) > MOST_DEVICES:
        raise InvalidInput(
            f"'{spec}' has {math.prod(sizes):,} devices, but the limit is {MOST_DEVICES:,}", where="cluster"
        )
    return sizes


def _devices(kind: str, nodes: int, each: int) -> tuple[Device, ...]:
    return tuple(
        Device(name=f"node{node}/{kind}-{number}", type=kind, node=f"node{node}")
        for node in range(nodes)
        for number in range(each)
    )


def _local(spec: str, processes: int) -> ClusterFields:
    # Nominal figures of one CPU core in FP32, and of messages through the loopback interface, from the sender's call to
    # the receiver's. `profile` measures operators.
    core = DeviceType(
        name="cpu",
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / processes,
        peak_flops_per_second=20e9,
        memory_bytes_per_second=10e9,
        launch_seconds=10e-6,
        half_peak_flops=1e6,
        host_bandwidth_bytes_per_second=5e9,  # a copy reads and writes memory
    )
    loopback = Link(latency_seconds=50e-6, bandwidth_bytes_per_second=1.5e9, processor_seconds=250e-6)
    return ClusterFields(
        name=spec,
        device_types=(core,),
        devices=_devices("cpu", 1, processes),
        intra_node=loopback,
        inter_node=loopback,
        cores_per_node=os.cpu_count(),
    )
