"""Gradients apart: LayerPipe's published ratios, LayerPipe2's delays, brute force, and rounds that must not be."""

from itertools import product
from random import Random
from typing import Any

import pytest
from builders import Part, make_plan

from bench.published.layerpipe import PROCESSORS, PUBLISHED, chain_plan, ratios, resnet, vgg
from graphpipe.cluster import Link
from graphpipe.planners.gradients_apart import exchanged, layers_of, longest_first, own_devices, place_gradients
from graphpipe.plans import Plan
from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTask, LayerTasks
from graphpipe.schedule.gradient_tasks.rounds import Rounds
from graphpipe.schedule.gradient_tasks.verify_rounds import verify_rounds
from graphpipe.simulator import step_seconds
from graphpipe.simulator.round_seconds import round_seconds


def tasks_of(plan: Plan) -> LayerTasks:
    return LayerTasks.of(plan.cost_model, layers_of(plan), 1, plan.batch_size)


def rounds_on_own_devices(layers: int) -> Rounds:
    plan = chain_plan([3.0] * layers, layers)
    work = tasks_of(plan)
    return Rounds(work=work, device_of=own_devices(work, plan))


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize(("model", "work"), [("vgg-16", vgg()), ("resnet-50", resnet())])
def test_published_ratios(model: str, work: list[float], at: int) -> None:
    listed, planned = ratios(work, PROCESSORS[at])
    assert listed == pytest.approx(PUBLISHED[model][at], rel=0.01)
    assert planned >= listed * (1 - 1e-9)


def test_work_of_the_published_models() -> None:
    assert sum(vgg()) == pytest.approx(15_470, rel=1e-3)  # millions of multiplications
    assert sum(resnet()) == pytest.approx(3_858 - 118 - 2, rel=1e-2)  # without the first and the last layer


def test_a_layer_is_late_by_two_updates_for_each_layer_behind_it() -> None:
    """LayerPipe2: Delay(l) = 2 S(l), if every layer is a stage and every mini-batch a micro-batch."""
    rounds = rounds_on_own_devices(5)
    verify_rounds(rounds)
    assert [rounds.delay(layer) for layer in range(5)] == [8, 6, 4, 2, 0]
    assert round_seconds(rounds) == pytest.approx(3.0, rel=1e-3)


def test_tasks_of_thirds_balance_better_than_stages() -> None:
    plan = chain_plan([6.0, 3.0, 6.0, 3.0], 3)
    assert step_seconds(plan) == pytest.approx(9.0, rel=1e-3)
    found = place_gradients(plan)
    assert round_seconds(found) == pytest.approx(6.0, rel=1e-3)
    assert [found.seconds(device) for device in found.orders] == pytest.approx([6.0] * 3)


@pytest.mark.parametrize("seed", range(4))
def test_assignments_against_brute_force(seed: int) -> None:
    random = Random(seed)
    plan = chain_plan([float(random.randint(1, 9)) for _ in range(3)], 2)
    work = tasks_of(plan)

    def longest(placement: dict[LayerTask, int]) -> float:
        return max(sum(work.seconds(task, 0) for task in work.tasks if placement[task] == n) for n in range(2))

    best = min(longest(dict(zip(work.tasks, choice, strict=True))) for choice in product((0, 1), repeat=9))
    listed = longest_first(work, (0, 1))
    assert longest(listed) <= best * (4 / 3 - 1 / 6) + 1e-9  # Graham's bound
    assert best - 1e-9 <= longest(exchanged(work, listed, (0, 1))) <= longest(listed)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_random_placements_are_sound_and_no_faster_than_their_busiest_device(micro_batches: int) -> None:
    random, plan = Random(micro_batches), chain_plan([2.0, 5.0, 1.0, 4.0], 4)
    work = LayerTasks.of(plan.cost_model, layers_of(plan), 1, micro_batches)
    for _ in range(6):
        rounds = Rounds(work=work, device_of={task: random.randrange(4) for task in work.tasks})
        verify_rounds(rounds)
        busiest = max(rounds.seconds(device) for device in rounds.orders)
        assert round_seconds(rounds) == pytest.approx(busiest, rel=1e-3)


def test_forwards_wait_for_the_weights_of_their_version() -> None:
    """Without the wait, or if weights were sent at another time, every test above would pass."""
    # F, I and W of a layer on three devices, in 1 s each. After two micro-batches, W updates in 0.5 s, and sends the
    # weights in 4 s. F i runs beside W i - 2, so F 4 and F 5 read what W 1 has updated, and W 5 makes what F 8 reads:
    # F 4, F 5, I 5, W 5 and the message take 1 + 1 + 1 + 1.5 + 4 s for two mini-batches, and all of it for one, if
    # every mini-batch waits for the update of the one before.
    plan = make_plan(
        [Part(parameter_bytes=4.0)], [], batch_size=2, device_count=3, optimizer_seconds_per_parameter_byte=0.125
    )
    work = LayerTasks.of(plan.cost_model, (("s0",),), 1, 2)
    device_of = {LayerTask("F", 0): 0, LayerTask("I", 0): 1, LayerTask("W", 0): 2}
    late, flushed = (Rounds(work=work, device_of=device_of, weights=weights) for weights in ("stash", "flush"))
    for rounds in (late, flushed):
        verify_rounds(rounds)
    assert [late.version(0, micro_batch) for micro_batch in range(7)] == [0, 0, 0, 0, 1, 1, 2]
    assert [flushed.version(0, micro_batch) for micro_batch in range(5)] == [0, 0, 1, 1, 2]
    assert round_seconds(late) == pytest.approx(8.5 / 2)
    assert round_seconds(flushed) == pytest.approx(8.5)


def test_the_verifier_sees_a_task_that_is_too_early() -> None:
    rounds = rounds_on_own_devices(3)
    rounds.__dict__["lag"] = rounds.lag | {LayerTask("W", 0): 3}
    with pytest.raises(AssertionError, match=r"reads .*, which is not made|in the round that sends it"):
        verify_rounds(rounds)


def test_memory_of_rounds_by_hand() -> None:
    """Three layers of 4 bytes, weights in 4 copies (gradients, two of the optimizer), 4 bytes between two layers."""
    rounds = rounds_on_own_devices(3)
    # Layer 0: 4 versions more for a delay of 4. Its I reads the gradient of F1's input, made one round before, and its
    # W what I keeps for it.
    assert rounds.memory_bytes(0) == 4 * 4 + 4 * 4 + 2 * 4 + 4
    assert rounds.sent_bytes() == {(0, 1): 4.0, (1, 2): 4.0, (1, 0): 4.0, (2, 1): 4.0}


@pytest.mark.parametrize(
    ("cluster", "message", "expected"),
    [
        ({}, 0.5, 3.0),  # the three tasks of the second layer
        ({"cores_per_node": 1}, 0.0, 6.0),  # those and the three of the first layer, one after the other
        ({"overlap": False}, 0.5, 4.0),  # those of the second layer, a value of 0.5 s and a gradient of 0.5 s
        ({"link": Link(latency_seconds=0.0, bandwidth_bytes_per_second=1.0, processor_seconds=0.25)}, 0.5, 3.5),
    ],
)
def test_devices_that_share_cores_or_wait_for_messages_take_longer(
    cluster: dict[str, Any], message: float, expected: float
) -> None:
    """Such clusters, `local:N` among them, were refused, because rounds were simulated without either."""
    plan = make_plan([Part(), Part()], [(0, 1, message)], batch_size=1, **cluster)
    work = LayerTasks.of(plan.cost_model, (("s0",), ("s1",)), 1, 1)
    rounds = Rounds(work=work, device_of={task: task.layer for task in work.tasks}, plan=plan)
    assert round_seconds(rounds) == pytest.approx(expected)
    assert place_gradients(plan).seconds(0) <= expected
