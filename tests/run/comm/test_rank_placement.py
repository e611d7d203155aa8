"""Which rank hosts which devices and replicas."""

import pytest
from run_models import BATCH, STAGES, fan, fan_batch
from run_plans import plan_of
from run_scenarios import build

from graphpipe.errors import InvalidInput
from graphpipe.run import RankLayout, ReplicaLayout
from graphpipe.run.comm.rank_placement import RankPlacement


def test_every_device_has_a_rank() -> None:
    plan = plan_of(fan(), fan_batch()[0], STAGES["mixed"], BATCH)
    spread, single = RankPlacement.of(plan, 6), RankPlacement.of(plan, 1)
    assert [spread.devices(rank) for rank in range(6)] == [(device,) for device in range(6)]
    assert single.devices(0) == (0, 1, 2, 3, 4, 5)
    assert spread.ranks(1) == (2, 3, 4)
    assert [(slot.stage, slot.replica, slot.device) for slot in spread.slots(4)] == [(1, 2, 4)]
    later = [(ops, [device + 2 for device in devices], size) for ops, devices, size in STAGES["four"]]
    for cut, size, idle in ((STAGES["four"], 6, (4, 5)), (later, 6, (0, 1)), (later, 5, (4,)), (later, 4, ())):
        placement = RankPlacement.of(plan_of(fan(), fan_batch()[0], cut, BATCH), size)
        assert placement.idle == idle
        assert sorted(placement.rank_of.values()) == sorted({*range(size)} - {*idle})
        assert all(not placement.slots(rank) and not placement.devices(rank) for rank in idle)
    with pytest.raises(InvalidInput, match="the plan uses 6 devices, the world has 4 ranks"):
        RankPlacement.of(plan, 4)


def test_the_layout_lists_the_replicas_of_a_rank() -> None:
    pipeline, _ = build("shared")
    replicas = pipeline.layout()[0].replicas
    assert isinstance(pipeline.layout()[0], RankLayout)
    assert [(each.stage, each.device) for each in replicas] == [
        ("stem", "cpu0"),
        ("left", "cpu1"),
        ("right", "cpu1"),
        ("head", "cpu0"),
    ]
    assert replicas[3] == ReplicaLayout(stage="head", device="cpu0", replica=0, degree=1, micro_batch=4)
