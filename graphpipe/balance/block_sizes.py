"""The blocks of samples that a plan computes together."""

from collections.abc import Iterable

from graphpipe.plans import Plan


def block_sizes(plan: Plan, ops: Iterable[str] | None = None) -> tuple[int, ...]:
    """Return the sizes of the blocks into which stages divide a mini-batch, largest first.

    These are the micro-batches of stages, and the parts of them that replicas get.

    Args:
        plan: with stages.
        ops: only stages with one of these operators count; None: all of them.
    """
    wanted = None if ops is None else frozenset(ops)
    sizes: set[int] = set()
    for stage in plan.stages:
        if wanted is None or not wanted.isdisjoint(stage.ops):
            sizes |= {stage.micro_batch, stage.micro_batch // stage.degree}
    return tuple(sorted((size for size in sizes if 0 < size < plan.batch_size), reverse=True))
