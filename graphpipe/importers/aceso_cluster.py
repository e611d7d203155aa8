"""The cluster of an Aceso run: a device for every group of GPUs that computes one replica of a stage."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from graphpipe.cluster import Cluster, Device, DeviceType
from graphpipe.errors import InvalidInput
from graphpipe.importers.aceso_costs import Variant, device_type_name
from graphpipe.importers.aceso_files import LINKS
from graphpipe.importers.aceso_links import read_link
from graphpipe.importers.aceso_plan import AcesoPlan
from graphpipe.importers.aceso_profile import OpProfile

UNKNOWN_RATE = 1e12
"""The rate where nothing was measured that it follows from. Only estimates of other operators would use it."""


def run_cluster(
    plan: AcesoPlan,
    links: Mapping[str, Path],
    variants: Sequence[Variant],
    *,
    name: str,
    node_gpus: int,
    memory_bytes: float,
    sequence: int,
) -> Cluster:
    """Return the cluster that a plan ran on.

    A tensor-parallel group computes as one device: its GPUs start and end every operator together. Its memory and its
    links are those of one GPU. Groups are placed in order of the stages, and fill one node after the other. Sends and
    receives block the devices at both ends, as in Megatron.

    Args:
        plan: of Aceso.
        links: the files of bandwidths.
        variants: what was measured, by tensor-parallel degree.
        name: of the cluster.
        node_gpus: GPUs of a node.
        memory_bytes: of a GPU.
        sequence: tokens of a sample, for the FLOPs of the fastest measured matrix product.
    """
    measured = [read_link(links[name]) for name in LINKS if name in links]
    if not measured:
        what, remedy = f"has neither {LINKS[0]} nor {LINKS[1]}", "Measure the bandwidth between two GPUs."
        raise InvalidInput(what, where=name, remedy=remedy)
    devices: list[Device] = []
    first = 0
    for stage in range(plan.num_stages):
        for _ in range(plan.replicas(stage)):
            kind, node = device_type_name(plan.tensor(stage)), f"n{first // node_gpus}"
            number = sum(other.node == node and other.type == kind for other in devices)
            devices.append(Device(name=f"{node}/{kind}-{number}", type=kind, node=node))
            first += plan.tensor(stage)
    return Cluster(
        name=name,
        device_types=tuple(_device_type(variants, variant.degree, memory_bytes, sequence) for variant in variants),
        devices=tuple(devices),
        intra_node=measured[0],
        inter_node=measured[-1],
        overlap=False,
        duplex=True,
    )


def memory_bytes_per_second(variants: Sequence[Variant]) -> float:
    """Return the bytes per second that the forward reads and allocates in the operator without weights that moves most.

    It stands for the bandwidth of a GPU's memory: this operator, a dropout of attention scores in a transformer, hardly
    computes, and is too large for caches.
    """
    moved = [
        (row.input_bytes + row.activation_bytes, row.forward_seconds)
        for row in _rows(variants)
        if not row.weight_bytes and row.forward_seconds
    ]
    count, seconds = max(moved, default=(0.0, 1.0))
    return count / seconds or UNKNOWN_RATE


def _device_type(variants: Sequence[Variant], degree: int, memory_bytes: float, sequence: int) -> DeviceType:
    # A weight of 2 bytes is multiplied and added once for each token.
    rates = (
        row.weight_bytes * samples * sequence / row.forward_seconds
        for variant in variants
        for profiles in variant.profiles.values()
        for samples, rows in profiles.rows.items()
        for row in rows
        if row.forward_seconds
    )
    return DeviceType(
        name=device_type_name(degree),
        memory_bytes=memory_bytes,
        peak_flops_per_second=max(rates, default=0.0) or UNKNOWN_RATE,
        memory_bytes_per_second=memory_bytes_per_second(variants),
        launch_seconds=0.0,
        half_peak_flops=0.0,
    )


def _rows(variants: Sequence[Variant]) -> Iterator[OpProfile]:
    for variant in variants:
        for profiles in variant.profiles.values():
            for rows in profiles.rows.values():
                yield from rows
