"""One segment of rounds on this rank: in every round, each device does each of its tasks once."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from graphpipe.run.device.overwritten import naming_overwritten
from graphpipe.run.rounds.contents import Item, Results
from graphpipe.run.rounds.layer_copy import LayerCopy
from graphpipe.run.rounds.layer_run import LayerRun
from graphpipe.run.rounds.round_messages import RoundMessages
from graphpipe.run.segments.mini_batch_stream import MiniBatchStream
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.receive_buffers import NamedTensors
from graphpipe.run.worker.worker import StageWorker
from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTask
from graphpipe.schedule.gradient_tasks.rounds import Rounds

_GRADIENTS = ("value", "gradient", "kept", "carried")


@dataclass(slots=True, kw_only=True)
class RoundRun:
    """What a segment of rounds needs, and how far it has come."""

    rounds: Rounds
    worker: StageWorker
    messages: RoundMessages
    layers: Mapping[tuple[int, int], LayerRun]
    """The layers of this rank, by number and device."""
    batches: MiniBatchStream
    update: Callable[[LayerCopy, int], None] | None
    """Updates the weights of a layer, given the oldest version that tasks here will still read. It is called
    after the last weight gradient of a mini-batch. None: weights are updated later."""
    following: dict[LayerTask, int] = field(default_factory=dict[LayerTask, int])
    """The next micro-batch of each task on this rank."""

    def run(self) -> None:
        """Do the rounds of all mini-batches."""
        with self._forgetting():
            self._run()

    def _run(self) -> None:
        rounds, total = self.rounds, len(self.batches) * self.rounds.work.micro_batches
        own = self.worker.placement.devices(self.worker.world.rank)
        self.following = {task: 0 for task, device in rounds.device_of.items() if device in own}
        for number in range(rounds.length(len(self.batches))):
            todo: list[tuple[LayerTask, int]] = []
            for device in rounds.devices:
                for task in rounds.orders[device]:
                    micro_batch = rounds.micro_batch_in(task, number)
                    if micro_batch is None or micro_batch >= total:
                        continue
                    if task.kind != "W" or self._updates_after(micro_batch):
                        self.messages.expect(task, micro_batch)
                    if device in own:
                        todo.append((task, micro_batch))
            for task, micro_batch in todo:
                self._do(task, micro_batch)
            self.batches.forget_before(min(self.following.values(), default=0) // rounds.work.micro_batches)
            self.messages.end_round()

    def finish(self, version: int) -> None:
        """Bring the weights of a version to all devices of this rank, and wait until everything is sent."""
        with self._forgetting():
            for run in self.layers.values():
                self._wait_for(run.layer, version)
            self.messages.drain()

    @contextmanager
    def _forgetting(self) -> Generator[None]:
        # The frames of an error refer to messages, which keep connections open, and other ranks waiting.
        try:
            yield
        except BaseException:
            self.messages.forget()
            raise

    def _updates_after(self, micro_batch: int) -> bool:
        return self.update is not None and not (micro_batch + 1) % self.rounds.work.micro_batches

    def _do(self, task: LayerTask, micro_batch: int) -> None:
        worker, device = self.worker, self.rounds.device_of[task]
        mini_batch, inside = divmod(micro_batch, self.rounds.work.micro_batches)
        run, batch = self.layers[task.layer, device], self.batches[mini_batch]
        if len(self.batches) > 1:
            worker.monitor.begin_step(batch.step)
        worker.monitor.enter("forward" if task.kind == "F" else "backward", task.layer, micro_batch)
        with worker.recorder.span(device, task.kind, task.layer, micro_batch), naming_overwritten(run.layer.name):
            results = self._results(task, micro_batch, inside, run, batch, device)
        self.following[task] += 1
        run.layer.forget_before(self.oldest(run.layer))
        if task.kind != "W":
            self.messages.deliver(task, micro_batch, results)
        elif self._updates_after(micro_batch) and self.update is not None:
            worker.monitor.enter("optimizer", task.layer)
            with worker.recorder.span(device, "optimizer", task.layer, mini_batch):
                self.update(run.layer, self.oldest(run.layer))
                if mini_batch + 1 < len(self.batches):  # The last gradients can be looked at.
                    run.layer.clear()
            self.send_weights(run.layer, micro_batch)

    def oldest(self, layer: LayerCopy) -> int:
        """Return the oldest version of its weights that a task of a layer will still read on this device."""
        tasks = (LayerTask("F", layer.number), LayerTask("I", layer.number))
        here = [task for task in tasks if self.rounds.device_of.get(task) == layer.device]
        total = len(self.batches) * self.rounds.work.micro_batches
        left = [self.following[task] for task in here if self.following[task] < total]
        return min((self.rounds.version(layer.number, each) for each in left), default=layer.newest + 1)

    def send_weights(self, layer: LayerCopy, micro_batch: int) -> None:
        """Send new weights to the devices of a layer's F and I."""
        weights: dict[Item, Tensor] = {
            ("weight", at): parameter.detach().clone() for at, parameter in enumerate(layer.trained)
        }
        self.messages.deliver(LayerTask("W", layer.number), micro_batch, weights)

    def _results(
        self, task: LayerTask, micro_batch: int, inside: int, run: LayerRun, batch: MiniBatch, device: int
    ) -> dict[Item, Tensor]:
        layer = run.layer
        kinds = ("value",) if task.kind == "F" else _GRADIENTS
        arrived: dict[LayerTask, Results] = {
            producer: self.messages.read(producer, micro_batch, device, kinds)
            for producer in self.rounds.work.producers[task]
        }
        if task.kind == "F":
            version = self.rounds.version(layer.number, micro_batch)
            self._wait_for(layer, version)
            layer.put(version)
            results = run.forward(micro_batch, inside, batch, self._received(layer, device, arrived))
            layer.put(layer.newest)
            return results
        own = LayerTask("I", layer.number)
        if task.kind == "W" and own in arrived:
            run.second_half(arrived[own])
            return {}
        kept = arrived[LayerTask("F", layer.number)]
        by_edge = {
            number: arrived[LayerTask("I", edge.target)]
            for number, edge in enumerate(self.worker.placement.plan.edges)
            if edge.source == layer.number and LayerTask("I", edge.target) in arrived
        }
        if task.kind == "W":
            _, carried = run.first_half(inside, batch, by_edge, kept, [])
            run.second_half({**kept, **{("carried", at): each for at, each in enumerate(carried) if each is not None}})
            return {}
        version = self.rounds.version(layer.number, micro_batch)
        self._wait_for(layer, version)
        parameters = layer.versions[version]
        results, carried = run.first_half(inside, batch, by_edge, kept, parameters)
        if LayerTask("W", layer.number) in self.rounds.device_of:
            results |= run.for_weights(carried, kept, parameters)
        return results

    def _received(self, layer: LayerCopy, device: int, arrived: Mapping[LayerTask, Results]) -> dict[int, NamedTensors]:
        received: dict[int, NamedTensors] = {}
        for edge, specs in layer.replica.program.receives.items():
            producer = LayerTask("F", self.worker.placement.plan.edges[edge].source)
            several = self.messages.readers[producer, device] > 1  # and a forward may write into what it receives
            values = {spec.name: arrived[producer]["value", spec.name].detach() for spec in specs}
            received[edge] = {name: value.clone() if several else value for name, value in values.items()}
        return received

    def _wait_for(self, layer: LayerCopy, version: int) -> None:
        # Weights that another device has updated are taken when a task first reads them.
        update = LayerTask("W", layer.number)
        while layer.newest < version and self.rounds.device_of.get(update, layer.device) != layer.device:
            last = (layer.newest + 1) * self.rounds.work.micro_batches - 1
            weights = self.messages.read(update, last, layer.device, ("weight",))
            layer.arrive(layer.newest + 1, [*weights.values()])
