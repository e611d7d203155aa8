"""What the parts of a split operator do with one sample, and what is left of the operator."""

from dataclasses import replace

from graphpipe.graph.op_split import OpSplit
from graphpipe.graph.operator import Op, Work

_KERNELS = {"Embedding": 1, "EmbeddingBag": 2}
"""Kernel launches of a look-up. A bag also lists where its samples begin."""
_BAG_BYTES = 32.0
"""Bytes that a bag writes for every sample besides its result: where it begins, and its length. It keeps most."""
_KEPT_BAG_BYTES = 24.0


def work_of_part(whole: Op, split: OpSplit, number: int) -> Work:
    """Return the work of one part of an operator.

    A part by rows looks up the whole list of indices, and has a result of the whole width. So its time does not become
    less with more parts: only its weights do. It also makes its own list of indices, and writes zeros for those of
    other parts.
    """
    branch, work = split.branches[number], whole.work
    share = split.share(branch)
    if split.by == "rows":
        return _work_of_rows(split, trains=whole.trainable)
    if split.kind != "Linear":  # an embedding is the whole operator, and each part reads and keeps all indices
        return replace(work, traffic_bytes_per_sample=share * work.traffic_bytes_per_sample)
    # By inputs, a value that another operator computed is saved for the gradient of the weight. By outputs, it counts
    # where it is made, because all parts save the same value. A model input is there anyway.
    saves = split.by == "inputs" and whole.trainable and branch.source is not None
    outputs = split.output_bytes_per_sample * (share if split.by == "outputs" else 1.0)
    return Work(
        flops_per_sample=share * split.flops_per_sample,
        traffic_bytes_per_sample=branch.bytes_per_sample + outputs,
        saved_bytes_per_sample=branch.bytes_per_sample if saves else 0.0,
        saved_bytes_per_forward=share * _cast_bytes(work, split) if branch.source is not None else 0.0,
        kernels=1,
        products=work.products,
    )


def _cast_bytes(work: Work, split: OpSplit) -> float:
    # Autocast copies a weight in half as many bytes, and the backward needs the copy for the gradient of the input.
    return min(work.saved_bytes_per_forward, split.weight_bytes / 2)


def work_of_rest(work: Work, split: OpSplit) -> Work:
    """Return what is left of an operator's work, with the sum or the concatenation of the results of its parts."""
    inputs, outputs, parts = split.input_bytes_per_sample, split.output_bytes_per_sample, len(split.branches)
    if split.by == "rows":
        return _work_after_rows(work, split)
    if split.kind != "Linear":
        return Work(traffic_bytes_per_sample=2 * outputs)
    if split.by == "outputs":  # a concatenation in place of the product
        gone, added, kernels = inputs + outputs, 2 * outputs, (1, 1)
    else:  # Concatenation and product are gone. Each addition reads two values and writes one.
        gone, added, kernels = 3 * inputs + outputs, 3 * outputs * (parts - 1), (2, parts - 1)
    return replace(
        work,
        flops_per_sample=work.flops_per_sample - split.flops_per_sample,
        traffic_bytes_per_sample=max(0.0, work.traffic_bytes_per_sample - gone) + added,
        saved_bytes_per_sample=max(0.0, work.saved_bytes_per_sample - (inputs if split.by == "inputs" else 0.0)),
        saved_bytes_per_forward=work.saved_bytes_per_forward - _cast_bytes(work, split),
        kernels=max(0, work.kernels - kernels[0]) + kernels[1],
    )


def _work_of_rows(split: OpSplit, *, trains: bool) -> Work:
    # A mask is an eighth of a list of 64-bit indices. Comparisons, masks and the own list read or write 6 to 9 lists in
    # all. An embedding then reads the result and writes it with zeros, a bag that averages with the mean. The own list
    # is kept for the backward, with the mask, or in a bag with a weight of half the bytes for every index.
    indices, outputs = split.input_bytes_per_sample, split.output_bytes_per_sample
    if split.kind == "Embedding":
        traffic, saved, kernels = 8 * indices + 3 * outputs, 9 / 8 * indices, 7
    else:
        traffic, saved, kernels = 10 * indices + 3 * outputs + _BAG_BYTES, 3 / 2 * indices + _BAG_BYTES, 9
    return Work(traffic_bytes_per_sample=traffic, saved_bytes_per_sample=saved if trains else 0.0, kernels=kernels)


def _work_after_rows(work: Work, split: OpSplit) -> Work:
    # The look-up is gone, and what it kept. Each addition reads two values and writes one.
    indices, outputs, additions = split.input_bytes_per_sample, split.output_bytes_per_sample, len(split.branches) - 1
    listed, kept = (_BAG_BYTES, _KEPT_BAG_BYTES) if split.kind == "EmbeddingBag" else (0.0, 0.0)
    kept += indices if split.branches[0].source is not None else 0.0
    left = max(0.0, work.traffic_bytes_per_sample - indices - listed - outputs)
    return replace(
        work,
        traffic_bytes_per_sample=left + 3 * outputs * additions,
        saved_bytes_per_sample=max(0.0, work.saved_bytes_per_sample - kept),
        kernels=max(0, work.kernels - _KERNELS[split.kind]) + additions,
    )
