"""When the tasks of rounds happen, with the messages between devices, and how often a mini-batch ends."""

from dataclasses import dataclass, field

from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTask
from graphpipe.schedule.gradient_tasks.rounds import Rounds
from graphpipe.simulator.events.engine import Activity, run, run_shared

_MINI_BATCHES = 8
"""Over which the period is measured, after all devices have work."""


def round_seconds(rounds: Rounds) -> float:
    """Return the seconds from one mini-batch to the next in the steady state.

    Every task starts when its device is free and what it reads has arrived. From one device to another, one message
    moves at a time, while devices compute, unless the cluster says that they wait or handle messages themselves. Tasks
    on a node with fewer cores than running tasks share the cores. Forwards wait for the weights of their version.
    """
    built = _Activities(rounds)
    settled = 2 * max(rounds.lag.values()) + 2 * rounds.work.micro_batches
    stop = settled + _MINI_BATCHES * rounds.work.micro_batches
    if rounds.weights == "flush":
        settled, stop = rounds.length(1), rounds.length(1 + _MINI_BATCHES)
    # Where devices share cores, later rounds slow those that are measured.
    cores = rounds.work.model.cluster.cores
    for number in range(stop + (max(rounds.lag.values()) + 1 if cores else 0)):
        built.add_round(number)
    happened = run_shared(built.activities, cores) if cores else run(built.activities)
    begin, end = (max(happened[at].end for at in built.of_round(number - 1)) for number in (settled, stop))
    return (end - begin) / _MINI_BATCHES


@dataclass(slots=True)
class _Activities:
    rounds: Rounds
    activities: list[Activity] = field(default_factory=list[Activity])
    free: dict[int | tuple[int, int], int] = field(default_factory=dict[int | tuple[int, int], int])
    """The last activity of each device, or of each sender and receiver."""
    arriving: dict[tuple[LayerTask, int, int], float] = field(default_factory=dict[tuple[LayerTask, int, int], float])
    """Seconds that a device takes for a message with a result before it is read, by task, micro-batch and device."""
    made: dict[tuple[LayerTask, int, int], int] = field(default_factory=dict[tuple[LayerTask, int, int], int])
    """The activity that makes a result available, by task, micro-batch and device."""

    def add_round(self, number: int) -> None:
        """Add the tasks of a round, then the messages of their results."""
        rounds, micro_batches = self.rounds, self.rounds.work.micro_batches
        for device, order in rounds.orders.items():
            for task in order:
                if (micro_batch := rounds.micro_batch_in(task, number)) is not None:
                    needs = [self.made[it, micro_batch, device] for it in rounds.work.producers[task]]
                    version = rounds.version(task.layer, micro_batch)
                    update = LayerTask("W", task.layer), version * micro_batches - 1, device
                    if task.kind != "W" and update in self.made:
                        needs.append(self.made[update])
                    seconds = rounds.work.seconds(task, device)
                    seconds += 0.0 if (micro_batch + 1) % micro_batches else rounds.work.update_seconds(task)
                    read = [(it, micro_batch, device) for it in rounds.work.producers[task]]
                    seconds += sum(self.arriving.pop(it, 0.0) for it in (*read, update))
                    self.made[task, micro_batch, device] = self._add(device, seconds, needs)
        for (source, target, task), count in rounds.messages.items():
            micro_batch = rounds.micro_batch_in(task, number)
            if micro_batch is not None and (task.kind != "W" or not (micro_batch + 1) % micro_batches):
                needs = [self.made[task, micro_batch, source]]
                if handling := rounds.work.model.message_seconds(count, source, target):
                    needs = [self._add(source, handling, needs)]
                    self.arriving[task, micro_batch, target] = handling
                self.made[task, micro_batch, target] = self._message(source, target, count, needs)

    def _message(self, source: int, target: int, count: float, needs: list[int]) -> int:
        model = self.rounds.work.model
        seconds = model.transfer_seconds(count, source, target)
        if model.cluster.overlap:
            return self._add((source, target), seconds, needs)
        waiting = [self.free[device] for device in (source, target) if device in self.free]
        self.activities.append(Activity(seconds, tuple(needs + waiting)))
        self.free[source] = self.free[target] = len(self.activities) - 1
        return self.free[source]

    def of_round(self, number: int) -> list[int]:
        """Return the activities of the tasks of a round."""
        rounds = self.rounds
        return [
            self.made[task, micro_batch, device]
            for device, order in rounds.orders.items()
            for task in order
            if (micro_batch := rounds.micro_batch_in(task, number)) is not None
        ]

    def _add(self, where: int | tuple[int, int], seconds: float, needs: list[int]) -> int:
        if where in self.free:
            needs.append(self.free[where])
        pool = self.rounds.work.model.cluster.devices[where].node if isinstance(where, int) else None
        self.activities.append(Activity(seconds, tuple(needs), pool))
        self.free[where] = len(self.activities) - 1
        return self.free[where]
