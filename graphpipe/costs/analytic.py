"""The analytic cost model: a roofline whose kernels saturate, from FLOPs and bytes."""

from dataclasses import dataclass

from graphpipe.cluster.cluster import Cluster
from graphpipe.cluster.device import DeviceType
from graphpipe.costs.cost_table import CostTable
from graphpipe.costs.op_cost import Curve, OpCost
from graphpipe.graph import Graph, Measured, Op

COMPUTE_SHARE = 3
"""One kernel in this many, but at least one, does an operator's FLOPs (a matrix product among element-wise kernels)."""
OPTIMIZER_TRAFFIC = 7.0
"""An AdamW step reads parameter, gradient and two moments, and writes parameter and moments."""


@dataclass(frozen=True, slots=True)
class _Need:
    """Which gradients an operator computes."""

    input_gradient: bool
    """Whether an operator upstream has trainable parameters."""
    weight_gradient: bool
    """Whether the operator itself has trainable parameters."""


def estimate(graph: Graph, cluster: Cluster, *, state_bytes_per_parameter_byte: float = 4.0) -> CostTable:
    """Return the costs of a graph on every device type of a cluster, computed from the operators' work.

    A pass of an operator with k kernels takes, for n samples, the larger of

        k * launch + c * half / fp32 peak + n * flops / peak     c = (k - s) // 3, at least 1: the kernels that compute
        k * launch + parameter_bytes / memory_bandwidth + n * traffic / memory_bandwidth

    The peak is that of the precision which the graph was captured for, or that of an operator's own products, as in a
    model whose weights are in bf16 or 8 bits. What an operator computes of parameters alone is read and written besides
    in the forward, and in the gradient of the input. The first line is a kernel of w FLOPs
    running at w / (w + half) of the peak: (w + half) / peak seconds, affine in the samples. Half of the peak is
    reached after the same time in every precision, so with more FLOPs where the peak is higher. The s kernels of a
    recurrent layer's steps are launched, but fill a device as well as they can: they add FLOPs and no saturation.
    Input and weight gradient take as many FLOPs and as much traffic as the forward. An operator without FLOPs (a
    table look-up) reads only the parameters counted in its traffic, but its weight gradient is as large as its
    parameters. The input gradient is counted only if an operator upstream has trainable parameters, and the weight
    gradient only if the operator itself has trainable parameters.

    Imported times are used unchanged on every device type, linear in the samples. If both gradients are needed, each
    takes half of the backward.

    Args:
        graph: the operators' `work`, or their `measured` times, are used.
        cluster: the device types are used.
        state_bytes_per_parameter_byte: parameters, gradients and optimizer state in units of the parameters
            (AdamW in fp32: 4; SGD without momentum: 2).

    References:
        Williams, Waterman, Patterson: Roofline: an insightful visual performance model. CACM 52 (2009).
    """
    needs, precision = _gradient_needs(graph), graph.origin and graph.origin.precision
    kinds = cluster.device_types
    slowest = min(kind.memory_bytes_per_second for kind in kinds)
    return CostTable(
        graph_fingerprint=graph.fingerprint,
        rows=tuple(_op_cost(op, kind, precision, needs[op.name]) for kind in kinds for op in graph.ops),
        state_bytes_per_parameter_byte=state_bytes_per_parameter_byte,
        optimizer_seconds_per_parameter_byte=OPTIMIZER_TRAFFIC / slowest,
    )


def _gradient_needs(graph: Graph) -> dict[str, _Need]:
    return {
        op.name: _Need(
            input_gradient=op.name in graph.returning,
            weight_gradient=op.trainable and op.parameter_bytes > 0,
        )
        for op in graph.ops
    }


def _op_cost(op: Op, kind: DeviceType, precision: str | None, need: _Need) -> OpCost:
    forward, input_gradient, weight_gradient = (
        _imported(op.measured, need) if op.measured is not None else _roofline(op, kind, precision)
    )
    return OpCost(
        op=op.name,
        device_type=kind.name,
        forward=forward,
        input_gradient=input_gradient if need.input_gradient else Curve(),
        weight_gradient=weight_gradient if need.weight_gradient else Curve(),
        source="analytic" if op.measured is None else "imported",
    )


def _imported(measured: Measured, need: _Need) -> tuple[Curve, Curve, Curve]:
    share = 0.5 if need.input_gradient and need.weight_gradient else 1.0
    forward = Curve(lines=((0.0, measured.forward_seconds / measured.samples),))
    gradient = Curve(lines=((0.0, share * measured.backward_seconds / measured.samples),))
    return forward, gradient, gradient


def _roofline(op: Op, kind: DeviceType, precision: str | None) -> tuple[Curve, Curve, Curve]:
    casts = 2 * op.work.saved_bytes_per_forward  # autocast writes copies of the weights, and the products read them
    read = op.parameter_bytes + casts if op.work.flops_per_sample else 0.0
    peak = kind.peak(op.work.products or precision)
    forward = _pass(op, kind, peak, read + op.work.traffic_bytes_per_forward)
    return forward, forward, _pass(op, kind, peak, op.parameter_bytes)


def _pass(op: Op, kind: DeviceType, peak: float, parameter_bytes: float) -> Curve:
    launch = op.work.kernels * kind.launch_seconds
    fixed = launch + parameter_bytes / kind.memory_bytes_per_second
    memory = (fixed, op.work.traffic_bytes_per_sample / kind.memory_bytes_per_second)
    if not op.work.flops_per_sample:
        return Curve(lines=(memory,))
    computing = max(1, (op.work.kernels - op.work.step_kernels) // COMPUTE_SHARE)
    saturation = computing * kind.half_peak_flops / kind.peak_flops_per_second
    return Curve(lines=((launch + saturation, op.work.flops_per_sample / peak), memory))
