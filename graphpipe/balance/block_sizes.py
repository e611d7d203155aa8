"""The blocks of samples that a plan computes together."""

from graphpipe.plans import Plan


def block_sizes(plan: Plan) -> tuple[int, ...]:
    """Return the sizes of the blocks into which stages divide a mini-batch, largest first.

    These are the micro-batches of stages, and the parts of them that replicas get. Micro-batches that do not divide the
    mini-batch are left out.
    """
    equal = [stage for stage in plan.stages if plan.batch_size % stage.micro_batch == 0]
    sizes = {size for stage in equal for size in (stage.micro_batch, stage.micro_batch // stage.degree)}
    return tuple(sorted((size for size in sizes if 0 < size < plan.batch_size), reverse=True))
