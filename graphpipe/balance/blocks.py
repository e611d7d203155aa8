"""The blocks of samples that a plan computes together."""

from dataclasses import dataclass

from graphpipe.plans import Plan


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a plan divides a mini-batch."""

    sizes: tuple[int, ...]
    """Samples of micro-batches, and of the parts of them that replicas get, largest first."""
    replicas: tuple[tuple[int, int], ...] = ()
    """Micro-batches that replicas share: their samples, and those of a replica's part."""

    @staticmethod
    def of(plan: Plan) -> "Blocks":
        """Return the blocks of a plan. Micro-batches that do not divide the mini-batch are left out."""
        equal = [stage for stage in plan.stages if plan.batch_size % stage.micro_batch == 0]
        shared = {(stage.micro_batch, stage.micro_batch // stage.degree) for stage in equal if stage.degree > 1}
        sizes = {size for stage in equal for size in (stage.micro_batch, stage.micro_batch // stage.degree)}
        return Blocks(
            sizes=tuple(sorted((size for size in sizes if 0 < size < plan.batch_size), reverse=True)),
            replicas=tuple(sorted((each for each in shared if each[1]), reverse=True)),
        )
