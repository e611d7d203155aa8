"""Rounds of tasks: in every round, each device does each of its tasks once, for micro-batches of different age.

    round          0     1     2     3     4        two layers, each on a device of its own
    device 0       F0    F0    F0    F0    F0       W works on the micro-batch of two rounds before
                               W0    W0    W0
    device 1             F1    F1    F1    F1       its tasks work on the micro-batch of one round before
                         I1 W1 I1 W1 I1 W1 I1 W1

What a device sends in one round, other devices read in the next. So a round needs as long as the busiest device. In the
theory of retiming, the cuts between devices get a delay each.

Unnikrishnan and Parhi, LayerPipe2 (2025): a layer with S stages behind it gets a delay of 2 S. Here layer 0 has S = 1,
if every mini-batch is one micro-batch.

With a flush, the rounds of a mini-batch begin when all tasks of the one before are done. Then no update is late.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from graphpipe.plans import Plan
from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTask, LayerTasks


# No slots: cached properties.
@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Where the tasks of a step are done."""

    work: LayerTasks
    device_of: Mapping[LayerTask, int]
    """The device of each task, which does its tasks in the order of `LayerTasks.tasks`."""
    weights: Literal["flush", "stash"] = "stash"
    """Which weights F and I of a micro-batch read. `stash`: the newest when its F runs. `flush`: those that all updates
    before its mini-batch have made."""
    plan: Plan | None = None
    """The plan whose layers are placed, if they are those of a plan."""

    @cached_property
    def lag(self) -> dict[LayerTask, int]:
        """The round in which each task does the first micro-batch."""
        lags: dict[LayerTask, int] = {}
        for task in self.work.tasks:
            before = (
                (lags[other], self.device_of[other] != self.device_of[task]) for other in self.work.producers[task]
            )
            lags[task] = max((lag + apart for lag, apart in before), default=0)
        return lags

    @cached_property
    def drain(self) -> int:
        """The rounds in which a mini-batch only ends, before the next one begins."""
        return max(self.lag.values()) if self.weights == "flush" else 0

    def round_of(self, task: LayerTask, micro_batch: int) -> int:
        """Return the round in which a task does a micro-batch, counted on through the mini-batches."""
        return self.lag[task] + micro_batch + self.drain * (micro_batch // self.work.micro_batches)

    def micro_batch_in(self, task: LayerTask, number: int) -> int | None:
        """Return the micro-batch that a task does in a round; None if there is none."""
        step = self.work.micro_batches + self.drain
        mini_batch, place = divmod(number - self.lag[task], step)
        return mini_batch * self.work.micro_batches + place if mini_batch >= 0 and place < step - self.drain else None

    def length(self, mini_batches: int) -> int:
        """Return the number of rounds in which so many mini-batches are done, without others behind them."""
        return 1 + max(self.round_of(task, mini_batches * self.work.micro_batches - 1) for task in self.lag)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The devices that have tasks, ascending."""
        return tuple(self.orders)

    @cached_property
    def orders(self) -> dict[int, tuple[LayerTask, ...]]:
        """The tasks of each device in a round."""
        return {
            device: tuple(task for task in self.work.tasks if self.device_of[task] == device)
            for device in sorted(set(self.device_of.values()))
        }

    def delay(self, layer: int) -> int:
        """Return the most updates between the weights that a micro-batch reads and those that its gradient changes.

        With m micro-batches in a mini-batch, F i runs in round i + lag(F), and update t ends in round (t + 1) m - 1 +
        lag(W). What was updated before a round is there.
        """
        update, forward = LayerTask("W", layer), LayerTask("F", layer)
        if update not in self.device_of or self.weights == "flush":
            return 0
        return -((self.lag[forward] - self.lag[update]) // self.work.micro_batches)

    def version(self, layer: int, micro_batch: int) -> int:
        """Return how many updates the weights have that F and I of a layer read for a micro-batch."""
        update, forward = LayerTask("W", layer), LayerTask("F", layer)
        if update not in self.device_of:  # a frozen layer
            return 0
        late = self.lag[update] - self.lag[forward] if self.weights == "stash" else 0
        return max(0, micro_batch - late) // self.work.micro_batches

    def seconds(self, device: int) -> float:
        """Return the seconds in which a device does the tasks of a mini-batch."""
        busy = sum(self.work.mean_seconds(task, device) for task in self.orders[device])
        return self.work.micro_batches * busy

    def memory_bytes(self, device: int) -> float:
        """Return the bytes that a device holds: weights, gradients and optimizer state, and what tasks have made.

        W keeps the newest weights with their gradients and the optimizer's state. F and I of a micro-batch read the
        same version, so their devices keep as many versions as stashing does: one more than the delay. What a task has
        made is kept by every device that reads it, from the round in which it was made to that of its last reader.
        """
        parameters, hosted, total = self.work.model.parameter_bytes, self.orders[device], 0.0
        for layer in {task.layer for task in hosted}:
            ops, kinds = self.work.layers[layer], {task.kind for task in hosted if task.layer == layer}
            versions = self.delay(layer) + ("W" not in kinds) if kinds - {"W"} else 0
            total += versions * parameters.weights(ops) + (parameters.state(ops) if "W" in kinds else 0.0)
        kept: dict[LayerTask, float] = {}
        for task in hosted:
            for producer in self.work.producers[task]:
                rounds = 1 + self.lag[task] - self.lag[producer]
                before, count = kept.get(producer, 0.0), rounds * self.work.reads[producer, task]
                kept[producer] = before + count if producer.kind == "I" else max(before, count)
        return total + sum(kept.values())

    def sent_bytes(self) -> dict[tuple[int, int], float]:
        """Return, by sender and receiver, the bytes per mini-batch. A device receives each value once."""
        bytes_by_pair: dict[tuple[int, int], float] = {}
        for (source, target, task), count in self.messages.items():
            times = 1 if task.kind == "W" else self.work.micro_batches
            bytes_by_pair[source, target] = bytes_by_pair.get((source, target), 0.0) + times * count
        return bytes_by_pair

    @property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """The senders and receivers of messages."""
        return frozenset((source, target) for source, target, _ in self.messages)

    @cached_property
    def messages(self) -> dict[tuple[int, int, LayerTask], float]:
        """Bytes of messages by sender, receiver and task that made it. A W sends new weights, once per mini-batch."""
        bytes_by_message: dict[tuple[int, int, LayerTask], float] = {}
        for (producer, reader), count in self.work.reads.items():
            self._add(bytes_by_message, producer, reader, count)
        for update in (task for task in self.work.tasks if task.kind == "W"):
            for kind in ("F", "I"):
                if (reader := LayerTask(kind, update.layer)) in self.device_of:
                    self._add(bytes_by_message, update, reader, self.work.weight_bytes(update.layer))
        return bytes_by_message

    def _add(
        self, bytes_by_message: dict[tuple[int, int, LayerTask], float], one: LayerTask, other: LayerTask, count: float
    ) -> None:
        ends = self.device_of[one], self.device_of[other]
        if ends[0] != ends[1]:
            before = bytes_by_message.get((*ends, one), 0.0)
            # An I makes another gradient for each reader. What an F makes is sent once, and its readers share it.
            bytes_by_message[*ends, one] = before + count if one.kind == "I" else max(before, count)
