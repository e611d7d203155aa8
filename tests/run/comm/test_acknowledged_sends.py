"""A rank releases a sent message as soon as it can infer that the peer has received it."""

from dataclasses import replace
from pathlib import Path

import pytest
from run_models import BATCH, STAGES, fan, fan_batch
from run_plans import plan_of
from run_ranks import run_ranks, values
from run_scenarios import chain_of_two, messages_kept

from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.schedule import Action, Compute, Send, StageTask
from graphpipe.schedule.acknowledged_sends import find_acknowledged_sends
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule


def test_acknowledged_sends_of_a_chain_are_those_derived_by_hand() -> None:
    # Rank 0: F0 F1 B0 F2 B1 B2. Rank 1: F0 B0 F1 B1 F2 B2.
    plan = chain_of_two(micro_batch=BATCH // 3)
    lowered, placement = lower(plan, build_schedule(plan)), RankPlacement.of(plan, 2)
    first, second = (
        {place: [(each.direction, each.source_task.micro_batch) for each in sent] for place, sent in found.items()}
        for found in (find_acknowledged_sends(lowered, placement.rank_of, rank) for rank in range(2))
    )
    assert {place: sent for place, sent in first.items() if sent} == {
        (0, StageTask("B", 0, number)): [("forward", number)] for number in range(3)
    }
    assert {place: sent for place, sent in second.items() if sent} == {(1, StageTask("F", 1, 2)): [("backward", 0)]}


@pytest.mark.parametrize("cut", [cut for cut in STAGES if cut not in ("shared", "pair", "whole")])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_the_peer_received_the_message_before_it_sent_the_acknowledging_one(cut: str, name: str) -> None:
    plan = plan_of(fan(), fan_batch()[0], STAGES[cut], BATCH, name)
    lowered, placement = lower(plan, build_schedule(plan)), RankPlacement.of(plan, len(plan.used_devices))
    known = 0
    for rank in range(placement.size):
        for (device, task), transfers in find_acknowledged_sends(lowered, placement.rank_of, rank).items():
            assert placement.rank_of[device] == rank
            for transfer in transfers:
                assert transfer.source_device == device
                order = lowered.devices[transfer.target_device]
                done = order.index(Compute(transfer.target_task))
                assert any(_tells(action, device, task) for action in order[done:])
                known += 1
    assert known


def _tells(action: Action, device: int, task: StageTask) -> bool:
    if not isinstance(action, Send):
        return False
    return (action.transfer.target_device, action.transfer.target_task) == (device, task)


def test_the_number_of_kept_messages_does_not_grow_with_the_number_sent(tmp_path: Path) -> None:
    """In an evaluation nothing comes back, so every output was kept until the end. It lowered anew at each call."""
    evaluated = 64
    first, second = values(run_ranks(messages_kept, 2, tmp_path, evaluated))
    for (most, sent), samples in zip([first[0], second[0], first[1]], [BATCH, BATCH, evaluated], strict=True):
        assert sent == 2 * samples  # two values
        assert most <= 4  # transfers
    assert second[1] == (0, 0)


def test_every_message_is_released_once() -> None:
    plan = replace(chain_of_two(micro_batch=1), schedule="1f1b")
    lowered, placement = lower(plan, build_schedule(plan)), RankPlacement.of(plan, 2)
    for rank in range(2):
        gone = [each for sent in find_acknowledged_sends(lowered, placement.rank_of, rank).values() for each in sent]
        assert len(gone) == len(set(gone))
