"""Sums gradients over the ranks of a replica that divide the sequence.

A parameter between the layers that ranks share, such as a norm's, gets on each rank the gradient of its positions. The
sum over the ranks is done once in a mini-batch, as in Megatron-LM.
"""

from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.run.faults.rank_status import ALL_PEERS
from graphpipe.run.weights.gradient_sum import sum_between_ranks
from graphpipe.run.worker.worker import StageWorker


def sum_positions(worker: StageWorker) -> None:
    """Sum these gradients of the stages of this rank; all ranks of their replicas call this.

    Args:
        worker: of this rank, after the last backward of a mini-batch.
    """
    for replica in worker.replicas.values():
        program, slot = replica.program, replica.slot
        if not isinstance(program, ModuleStage) or not program.summed:
            continue
        worker.monitor.enter("reduce", slot.stage, peer=ALL_PEERS)
        named = dict(program.module.named_parameters())
        summed = [named[local] for local, name in program.parameter_names.items() if name in program.summed]
        ranks = worker.placement.team(slot.stage, slot.replica)
        sum_between_ranks(worker.world, summed, ranks, replica.stage_name)
