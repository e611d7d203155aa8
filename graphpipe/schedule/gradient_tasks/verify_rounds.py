"""Verifies rounds by doing them: every task finds what it reads. Shares no code with `rounds`."""

from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTask
from graphpipe.schedule.gradient_tasks.rounds import Rounds


def verify_rounds(rounds: Rounds) -> None:
    """Do rounds until every device has done all its tasks for several mini-batches, and check what they read.

    1. A device has what it computed itself, and what other devices sent in an earlier round.
    2. A forward reads `Rounds.version`: the updates of its layer in earlier rounds.
    3. It misses at most as many updates as `Rounds.delay` says, and once as many.

    Raises:
        AssertionError: a task reads what is not there. This is a bug of GraphPipe.
    """
    reads: dict[LayerTask, list[LayerTask]] = {}
    for producer, reader in rounds.work.reads:
        reads.setdefault(reader, []).append(producer)
    micro_batches = rounds.work.micro_batches
    made_in: dict[tuple[LayerTask, int], int] = {}
    updates, missing = dict.fromkeys(range(len(rounds.work.layers)), 0), dict[int, int]()
    last = max(rounds.lag.values())
    flushes = rounds.weights == "flush"
    for number in range(2 * (last + micro_batches) + 1):
        known = dict(updates)
        for device, order in rounds.orders.items():
            for task in order:
                assert rounds.device_of[task] == device, f"{task} is on another device"
                micro_batch = number - rounds.lag[task]
                if flushes:  # every mini-batch takes `last` rounds more
                    mini_batch, place = divmod(micro_batch, micro_batches + last)
                    micro_batch = mini_batch * micro_batches + place if place < micro_batches else -1
                assert rounds.micro_batch_in(task, number) == (micro_batch if micro_batch >= 0 else None)
                if micro_batch < 0:
                    continue
                for producer in reads.get(task, []):
                    made = made_in.get((producer, micro_batch))
                    here = rounds.device_of[producer] == device
                    assert made is not None, f"{task} of micro-batch {micro_batch} reads {producer}, which is not made"
                    assert made < number or here, f"{task} reads {producer} in the round that sends it"
                if task.kind == "F" and LayerTask("W", task.layer) in rounds.device_of:
                    version = rounds.version(task.layer, micro_batch)
                    assert version == known[task.layer], f"{task} of micro-batch {micro_batch} reads version {version}"
                    late = micro_batch // micro_batches - version
                    missing[task.layer] = max(missing.get(task.layer, 0), late)
                updates[task.layer] += task.kind == "W" and (micro_batch + 1) % micro_batches == 0
                assert (task, micro_batch) not in made_in, f"{task} is done twice"
                made_in[task, micro_batch] = number
    for layer, late in missing.items():
        assert late == rounds.delay(layer), f"layer {layer} is {late} updates late, not {rounds.delay(layer)}"
    assert {task for task, _ in made_in} == set(rounds.work.tasks), "every task is done"
