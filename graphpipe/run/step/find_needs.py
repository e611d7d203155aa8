"""Finds which rows of a mini-batch a rank reads, from the plan alone."""

from collections.abc import Collection, Sequence

from graphpipe.model.stage_program import StageProgram
from graphpipe.plans.sharding import count_micro_batches, sample_range
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.stage.shares.needs import Needs
from graphpipe.run.step.evaluation import stretch


def find_needs(
    placement: RankPlacement,
    rank: int,
    programs: Sequence[StageProgram],
    size: int,
    *,
    all_targets: bool,
    gradients_of: Collection[int] = (),
) -> Needs:
    """Return the rows of a mini-batch that the stages of a rank consume.

    Args:
        placement: of the plan on the ranks.
        rank: whose needs are wanted.
        programs: by stage.
        size: samples of the mini-batch.
        all_targets: the loss of some samples needs the targets of all.
        gradients_of: stages of which the rank computes gradients, whose forward may be on another rank.
    """
    stages = stretch(placement.plan, size).stages
    inputs: dict[str, set[int]] = {}
    targets: set[int] = set()
    for slot in placement.slots(rank):
        stage, program = stages[slot.stage], programs[slot.stage]
        numbers = range(count_micro_batches(size, stage.micro_batch))
        ranges = [sample_range(size, stage.micro_batch, stage.degree, number, slot.replica) for number in numbers]
        rows = {row for samples in ranges for row in range(samples.start, samples.stop)}
        for name in program.model_inputs:
            inputs.setdefault(name, set()).update(rows)
        if program.is_output:
            targets |= {*range(size)} if all_targets else rows
    for stage in gradients_of:
        for name in programs[stage].model_inputs:
            inputs.setdefault(name, set()).update(range(size))
        if programs[stage].is_output:
            targets |= {*range(size)}
    layout = placement.plan.graph.input_layout
    return Needs(
        size=size,
        inputs={name: sorted(inputs[name]) for name in layout.names if name in inputs},
        layout=layout,
        targets=sorted(targets),
    )
