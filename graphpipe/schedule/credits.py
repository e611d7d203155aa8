"""Back-pressure of an evaluation: how many samples a stage may be ahead of the stages that read its outputs.

    stage 0   F0 F1 F2 .. F3 .. F4        In flight: two micro-batches. F3 waits until stage 1 has begun with F1,
    stage 1      F0 .. F1 .. F2           so that at most two outputs wait there, and none is kept here.

In training the backwards say how far a stage may go. An evaluation has none, so a stage takes the samples in flight of
1F1B instead (`plans.in_flight`). Under 1F1B a backward follows the forwards of all consumers, so every order that 1F1B
allows is allowed here, and no stage waits forever.

A plan that does not train says itself how many samples each stage has memory for. An edge takes the fewer of its ends.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from graphpipe.plans import Plan
from graphpipe.plans.in_flight import in_flight_samples
from graphpipe.schedule.actions import Transfer
from graphpipe.schedule.schedule import StageTask
from graphpipe.schedule.task_numbers import TaskNumbers


class Credits:
    """The credits of the stages of a plan, for an evaluation of some samples."""

    def __init__(self, plan: Plan, numbers: TaskNumbers) -> None:
        sizes = [stage.micro_batch for stage in plan.stages]
        self._plan, self._numbers, self._sizes = plan, numbers, sizes
        self._ahead = _samples_ahead(plan, numbers.batch_size)

    def consumed(self, edge: int, micro_batch: int) -> int:
        """Return the consumer's micro-batch that comes before this one of the producer; negative if there is none."""
        ends = self._plan.edges[edge]
        end = min((micro_batch + 1) * self._sizes[ends.source], self._numbers.batch_size)
        return (end - self._ahead[edge] - 1) // self._sizes[ends.target]

    def flows(self) -> Iterator[tuple[int, int]]:
        """Yield the pairs of numbers of forwards: of a consumer, and of its producer, which starts after it."""
        for edge, ends in enumerate(self._plan.edges):
            done = -1
            for micro_batch in range(self._numbers.counts[ends.source]):
                last = self.consumed(edge, micro_batch)
                if last > done:
                    after = [*self._forwards(ends.source, micro_batch, micro_batch - 1)]
                    yield from ((early, late) for early in self._forwards(ends.target, last, done) for late in after)
                    done = last

    def awaited(self, made: Iterable[Sequence[Transfer]]) -> dict[tuple[int, StageTask], list[Transfer]]:
        """Return the transfers that must have arrived before a task, by its device and the task.

        Args:
            made: the transfers of each task, in the order of edges and samples.
        """
        by_task: dict[tuple[int, StageTask], list[Transfer]] = {}
        for transfer in chain.from_iterable(made):
            by_task.setdefault((transfer.edge, transfer.source_task), []).append(transfer)
        transfers: dict[tuple[int, StageTask], list[Transfer]] = {}
        for edge, ends in enumerate(self._plan.edges):
            sent = {device: deque[Transfer]() for device in self._plan.stages[ends.source].devices}
            for micro_batch in range(self._numbers.counts[ends.source]):
                task, last = StageTask("F", ends.source, micro_batch), self.consumed(edge, micro_batch)
                for device, on_the_way in sent.items():
                    while on_the_way and on_the_way[0].target_task.micro_batch <= last:
                        transfers.setdefault((device, task), []).append(on_the_way.popleft())
                for transfer in by_task.get((edge, task), ()):
                    sent[transfer.source_device].append(transfer)
        return transfers

    def _forwards(self, stage: int, last: int, done: int) -> Iterator[int]:
        # On every replica: the last forward of these micro-batches, after `done`, for which it has samples.
        for device in self._plan.stages[stage].devices:
            numbers = (self._numbers.number(StageTask("F", stage, at), device) for at in range(last, done, -1))
            yield from [number for number in numbers if self._numbers.samples[number]][:1]


def _samples_ahead(plan: Plan, batch_size: int) -> list[int]:
    """Return, by edge, how many samples its source may have begun that its target has not."""
    if not plan.trains:
        planned = [(plan.stages[edge.source], plan.stages[edge.target]) for edge in plan.edges]
        return [min(source.in_flight, target.in_flight) for source, target in planned]
    sizes = [stage.micro_batch for stage in plan.stages]
    in_flight = in_flight_samples(batch_size, sizes, [1] * len(sizes), plan.successors)
    return [in_flight[edge.source] for edge in plan.edges]
