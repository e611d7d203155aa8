"""Replicas that take over the samples of a lost device: their plan, and what a rank keeps in memory."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
import torch
from run_models import BATCH, STAGES, fan, fan_batch
from run_plans import plan_of
from torch import nn

from graphpipe.costs import estimate
from graphpipe.devices.cpu import CPU
from graphpipe.errors import Infeasible, PeerLost
from graphpipe.model.torch_private import own_buffers
from graphpipe.planning.hand_plan import under_policy
from graphpipe.plans import Plan
from graphpipe.plans.verify import verify
from graphpipe.run.device.precision import LossScale
from graphpipe.run.weights.weight_update import ScheduledOptimizer, WeightAverage
from graphpipe.training.config.settings import TrainConfig, TrainSettings
from graphpipe.training.elastic.degraded_plan import why_not_reroute, without_devices
from graphpipe.training.elastic.survivor import BufferCopies, RepeatableBatches, Survivor


def cut(name: str) -> Plan:
    found = plan_of(fan(), fan_batch()[0], STAGES[name], BATCH)
    edges = (*found.edges[:-1], replace(found.edges[-1], bytes_per_sample=8.0))  # two values
    return replace(found, costs=estimate(found.graph, found.cluster), edges=edges)


@pytest.fixture
def plan() -> Plan:
    return cut("mixed")


def with_memory(plan: Plan, count: float) -> Plan:
    kinds = tuple(replace(kind, memory_bytes=count) for kind in plan.cluster.device_types)
    return replace(plan, cluster=replace(plan.cluster, device_types=kinds))


def fits(plan: Plan) -> bool:
    try:
        verify(plan)
    except Infeasible:
        return False
    return True


def config(**settings: object) -> TrainConfig:
    train = TrainSettings(batch_size=BATCH, steps=1, **settings)  # pyright: ignore[reportArgumentType]
    return TrainConfig(task="t.py:task", cluster="local:2", train=train)


def test_the_last_mini_batch_can_be_given_again() -> None:
    given = [(torch.tensor(step), None) for step in (5, 6, 7)]
    batches = RepeatableBatches.after(4, iter(given))
    assert [next(batches), next(batches)] == given[:2]
    batches.return_to(5)  # step 6 was interrupted
    assert next(batches) is given[1]
    batches.return_to(6)  # and then the loss came before the next mini-batch was read
    assert next(batches) is given[2]


def test_a_rank_that_leaves_closes_its_connections() -> None:
    """A message in the frames of the error kept a connection open, and a peer waited until the time limit."""
    held: list[ref[nn.Module]] = []

    class Launcher:
        def leave(self, steps: int) -> bool:
            return (steps, held[0]()) == (3, None)

    def lose_a_peer() -> None:
        message = nn.Module()
        held.append(ref(message))
        raise PeerLost("rank 1 died")

    kept: Any = SimpleNamespace(steps=3)
    launcher: Any = Launcher()
    with pytest.raises(PeerLost) as caught:
        lose_a_peer()
    assert held[0]() is not None
    assert Survivor(launcher, kept).goes_on(caught.value)
    assert not Survivor(None, kept).goes_on(caught.value)
    assert not Survivor(launcher, None).goes_on(caught.value)


def test_statistics_of_an_interrupted_step_are_dropped() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    copies = BufferCopies([module])
    module(torch.randn(8, 2))
    copies.update()
    wanted = {name: each.clone() for name, each in module.named_buffers()}
    module(torch.randn(8, 2))
    assert not torch.equal(wanted["1.running_mean"], module.get_buffer("1.running_mean"))
    copies.restore()
    assert all(torch.equal(wanted[name], each) for name, each in module.named_buffers())


@pytest.mark.parametrize(
    ("phase", "done", "keeps"),
    [
        ("forward", 3, True),
        ("send", 0, True),
        ("optimizer", 3, False),  # The weights are those of no step.
        ("buffers", 3, False),  # The step is done, and not counted.
        ("summary", 4, False),  # It was the last one: nothing is left to go on with.
    ],
)
def test_a_rank_keeps_its_state_unless_a_loss_comes_within_an_update(phase: str, done: int, keeps: bool) -> None:
    said: list[str] = []

    class Launcher:
        @contextmanager
        def in_training(self) -> Generator[None]:
            yield

        def stay(self) -> None:
            said.append("stays")

    module = nn.BatchNorm1d(2)
    optimizer = torch.optim.SGD(module.parameters())
    scale, scheduled = LossScale(factor=8.0), averaged(module, optimizer, 3.0)
    state = SimpleNamespace(
        programs=[SimpleNamespace(module=module)], hosted=[0], optimizers=[scheduled], loss_scale=scale
    )
    pipeline: Any = SimpleNamespace(
        world=SimpleNamespace(kind=CPU),
        state=state,
        steps=done,
        monitor=SimpleNamespace(last_status=SimpleNamespace(phase=phase)),
    )
    checkpoints: Any = SimpleNamespace(leave_behind=lambda: lambda: said.append("saved"))
    batches = RepeatableBatches.after(done, iter([]))
    launcher, reader, history = Launcher(), object(), list[Any]()
    survivor = Survivor(launcher, kept=object())  # pyright: ignore[reportArgumentType]
    before = torch.random.get_rng_state()

    def interrupted_step() -> None:
        with survivor.training(pipeline, checkpoints, reader, batches, history, 4):  # pyright: ignore[reportArgumentType]
            module(torch.randn(8, 2))
            torch.random.set_rng_state(before)
            raise PeerLost("rank 1 died")

    with pytest.raises(PeerLost):
        interrupted_step()
    if not keeps:
        assert (survivor.kept, said) == (None, ["stays"])
        return
    kept = survivor.kept
    assert kept is not None
    assert module.num_batches_tracked == 0
    assert (kept.steps, kept.optimizers, kept.loss_scale, kept.reader) == (done, [scheduled], scale, reader)
    assert kept.history is history
    torch.rand(1)  # such as a new pipeline draws
    resumed: list[tuple[int, object]] = []
    anew = averaged(module, optimizer, 0.0)  # A pipeline that is built begins with its weights.
    next_one: Any = SimpleNamespace(
        resume=lambda *given: resumed.append(given), state=SimpleNamespace(optimizers=[anew])
    )
    kept.resume(next_one)
    assert resumed == [(done, scale)]
    assert anew.average is not None
    assert [each.unique().tolist() for each in anew.average.averages] == [[3.0], [3.0]]
    assert batches.given == done
    assert torch.equal(torch.random.get_rng_state(), before)


def averaged(module: nn.Module, optimizer: torch.optim.Optimizer, value: float) -> ScheduledOptimizer:
    """Return an optimizer whose averages have one value."""
    average = WeightAverage.of([*module.parameters()], 0.9)
    average.load([torch.full_like(each, value) for each in average.averages])
    return ScheduledOptimizer(optimizer=optimizer, scheduler=None, average=average)


class Remembering(nn.Module):
    """Keeps what it has computed in buffers: one that it makes, one that was None, one that it replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("longest", torch.zeros(1))
        self.register_buffer("scale", None)

    def forward(self, rows: int) -> None:
        self.register_buffer("bias", torch.arange(rows), persistent=False)
        self.scale = torch.full((rows,), 2.0)
        self.longest = torch.ones(rows)


def test_buffers_that_an_interrupted_step_has_made_are_dropped() -> None:
    """A buffer without a copy was a KeyError, so a rank that could have gone on failed too."""
    module = Remembering()
    copies = BufferCopies([module])
    module(3)
    copies.restore()
    assert {name: None if each is None else each.tolist() for name, each in own_buffers(module).items()} == {
        "longest": [0.0],
        "scale": None,
    }
    module(3)
    copies.update()
    module(4)
    copies.restore()
    wanted = {"longest": [1.0] * 3, "scale": [2.0] * 3, "bias": [0, 1, 2]}
    assert {name: each.tolist() for name, each in module.named_buffers()} == wanted
    module.longest.add_(1)  # It is no longer the copy itself.
    copies.restore()
    assert module.longest.tolist() == wanted["longest"]


def test_the_other_replicas_take_over_the_samples(plan: Plan) -> None:
    found = without_devices(replace(plan, search_seconds=60.0), {"cpu3"})
    assert found is not None
    assert found.search_seconds == 0
    assert [device.name for device in found.cluster.devices] == ["cpu0", "cpu1", "cpu2", "cpu4", "cpu5"]
    assert [stage.devices for stage in found.stages] == [(0, 1), (2, 3), (4,)]
    assert [replace(stage, devices=()) for stage in found.stages] == [replace(each, devices=()) for each in plan.stages]
    assert found.prediction is not None
    again = without_devices(found, {"cpu0", "cpu4"})
    assert again is not None
    assert [stage.devices for stage in again.stages] == [(0,), (1,), (2,)]


def test_a_loss_that_the_other_replicas_cannot_make_up_for(plan: Plan) -> None:
    assert without_devices(plan, {"cpu5"}) is None  # the last replica
    three = replace(plan, stages=(plan.stages[0], replace(plan.stages[1], micro_batch=3), plan.stages[2]))
    assert fits(three)
    assert without_devices(three, {"cpu3"}) is None  # three samples do not split over two
    even = cut("replicas")
    enough = next(size for size in range(1, 10**6) if fits(with_memory(even, size)))
    tight, ample = (without_devices(with_memory(even, memory), {"cpu0", "cpu2"}) for memory in (enough, 4 * enough))
    assert tight is None
    assert ample is not None


def test_what_rests_on_a_neighbour_goes_with_the_devices(plan: Plan) -> None:
    """Positions of devices changed without those of the neighbours: another device, or the same one, was meant."""
    middle = replace(plan.stages[1], offload=("left",), offload_to=(5, 0, 1))
    offloading = replace(plan, stages=(plan.stages[0], middle, plan.stages[2]))
    verify(offloading)
    found = without_devices(offloading, {"cpu3"})
    assert found is not None
    assert (found.stages[1].devices, found.stages[1].offload_to) == ((2, 3), (4, 1))
    assert without_devices(offloading, {"cpu0"}) is None  # the neighbour is lost


def test_what_is_only_on_the_lost_rank_cannot_be_kept(plan: Plan) -> None:
    assert why_not_reroute(config(), plan) == ""
    assert why_not_reroute(config(shard_optimizer=True), plan)
    assert why_not_reroute(config(engine="ddp"), plan)
    shared = replace(plan, stages=(replace(plan.stages[0], state="optimizer"), *plan.stages[1:]))
    assert why_not_reroute(config(), shared)
    for policy in ("stash", "double-buffer"):
        assert "weights change" in why_not_reroute(config(), under_policy(plan, policy))
    # Every elastic run copied its buffers after each step, even if no stage had replicas that could take over.
    alone = replace(plan, stages=tuple(replace(stage, devices=(n,)) for n, stage in enumerate(plan.stages)))
    assert why_not_reroute(config(), alone) == "every device hosts a stage that has no other replica"
