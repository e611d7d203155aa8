"""The costs of the operators of an Aceso run, for every tensor-parallel degree that the run uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphpipe.costs import CostTable
from graphpipe.costs.op_cost import Curve, OpCost, Temporaries
from graphpipe.graph import Graph
from graphpipe.importers.aceso_graph import RunOp
from graphpipe.importers.aceso_links import collective_seconds
from graphpipe.importers.aceso_profile import ModelProfiles, OpProfile
from graphpipe.importers.megatron_layer import ALL_REDUCES, FIRST

STATE_BYTES_PER_WEIGHT_BYTE = 8.0
"""Mixed precision with Adam: 2 bytes of weights, 2 of gradients, 4 of weights and 8 of moments in 32 bits, so 16 bytes
for the 2 bytes of a weight (Rajbhandari et al.: ZeRO, SC 2020, section 3.1)."""
ACCUMULATED_BYTES_PER_WEIGHT_BYTE = 3.0
"""A backward adds to the gradients of earlier micro-batches: it reads both, and writes the sum. A profile of one
operator has nothing to add to."""
UPDATED_BYTES_PER_WEIGHT_BYTE = 30.0
"""What Adam reads and writes in mixed precision, in bytes for each weight of 2 bytes: copy the gradient to 32 bits (6),
unscale it and look for infinities (8), norm and clipping (12), the step (16 read, 12 written), and the new weights in
16 bits (6). These are 60 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What was measured of a model with one tensor-parallel degree, by algorithm."""

    degree: int
    profiles: Mapping[int, ModelProfiles]
    all_reduce: Mapping[float, float]
    """Seconds of an all-reduce by bytes; empty if they were not measured."""

    def row(self, op: RunOp, samples: int) -> OpProfile:
        """Return the profile of an operator for a profiled number of samples."""
        return self.profiles[op.algorithm].rows[samples][op.row]

    def summed_bytes(self, op: RunOp, samples: int) -> float:
        """Return the bytes that an operator sums over the group: the input of a layer, or its gradient."""
        rows = self.profiles[op.algorithm].rows[samples]
        return next((row.input_bytes for row in rows if row.name == FIRST), 0.0)


def device_type_name(degree: int) -> str:
    """Return the name of the device type that stands for a tensor-parallel group."""
    return f"tp{degree}"


def run_costs(graph: Graph, ops: Sequence[RunOp], variants: Sequence[Variant], bytes_per_second: float) -> CostTable:
    """Return the costs of the operators on groups of every tensor-parallel degree that was run.

    The memory of the gradients that a backward returns counts as temporary.

    Args:
        graph: of the operators, in their order.
        ops: of the model, in order.
        variants: by tensor-parallel degree; the first is the least.
        bytes_per_second: from and to the memory of a GPU.
    """
    given_bytes = [None, *(op.output_bytes_per_sample for op in graph.ops[:-1])]
    rows = [
        _op_cost(name, op, variant, variants[0], bytes_per_second, given)
        for variant in variants
        for name, op, given in zip((op.name for op in graph.ops), ops, given_bytes, strict=True)
    ]
    return CostTable(
        graph_fingerprint=graph.fingerprint,
        rows=tuple(rows),
        state_bytes_per_parameter_byte=STATE_BYTES_PER_WEIGHT_BYTE,
        optimizer_seconds_per_parameter_byte=UPDATED_BYTES_PER_WEIGHT_BYTE / bytes_per_second,
    )


def _op_cost(
    name: str, op: RunOp, variant: Variant, least: Variant, bytes_per_second: float, given: float | None
) -> OpCost:
    forward: dict[int, float] = {}
    backward: dict[int, float] = {}
    for samples in variant.profiles[op.algorithm].rows:
        row = variant.row(op, samples)
        waits = _collective_waits(op, samples, variant, least)
        adds = ACCUMULATED_BYTES_PER_WEIGHT_BYTE * row.weight_bytes / bytes_per_second
        forward[samples] = row.forward_seconds + waits.get("forward", 0.0)
        backward[samples] = row.backward_seconds + waits.get("backward", 0.0) + adds
    # Only the sum was measured. If both gradients are needed, each takes half of it.
    inputs = 0.0 if given is None else 0.5 if op.profile.weight_bytes else 1.0
    return OpCost(
        op=name,
        device_type=device_type_name(variant.degree),
        forward=curve_through(forward, op.profiled_samples),
        input_gradient=curve_through({n: inputs * time for n, time in backward.items()}, op.profiled_samples),
        weight_gradient=curve_through({n: (1 - inputs) * time for n, time in backward.items()}, op.profiled_samples),
        source="imported",
        temporaries=Temporaries(forward=Curve(), backward=Curve(lines=((0.0, given or 0.0),))),
    )


def _collective_waits(op: RunOp, samples: int, variant: Variant, least: Variant) -> dict[str, float]:
    """Return the seconds that a pass of an operator waits longer for its all-reduce than its profile says.

    The profile of an operator includes the collective, and collectives were measured by themselves too. The two differ
    by a factor of 2 where the GPUs of a node have unequal links. An operator of a group with slow links waits for the
    slower one. Its own all-reduce is what its profile has beyond an equal share of the undivided operator.
    """
    which = ALL_REDUCES.get(op.profile.name)
    divided = variant.degree > 1 == least.degree and op.algorithm == 0
    if not (op.slow_links and which and divided and variant.all_reduce and samples in least.profiles[0].rows):
        return {}
    here, whole = variant.row(op, samples), least.row(op, samples)
    included = here.forward_seconds - whole.forward_seconds / variant.degree
    if which == "backward":
        included = here.backward_seconds - whole.backward_seconds / variant.degree
    alone = collective_seconds(variant.all_reduce, variant.summed_bytes(op, samples))
    return {which: max(0.0, alone - max(0.0, included))}


def curve_through(seconds: Mapping[int, float], samples: int) -> Curve:
    """Return a curve that has the measured seconds of some samples, and those of its neighbours if it is convex.

    Args:
        seconds: by measured samples.
        samples: one of them.
    """
    here = seconds[samples]
    below = max((other for other in seconds if other < samples), default=None)
    above = min((other for other in seconds if other > samples), default=None)
    slopes = [(seconds[other] - here) / (other - samples) for other in (below, above) if other is not None]
    # A line has neither a negative slope nor a negative fixed part.
    slopes = [min(max(0.0, slope), here / samples) for slope in slopes or [here / samples]]
    lines = dict.fromkeys((here - slope * samples, slope) for slope in slopes)
    return Curve(lines=tuple(lines))
