"""The messages between the tasks of some rounds: handed over on one rank, sent between two."""

from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.model.halves.saved_layouts import Layout
from graphpipe.model.torch_private import write_count
from graphpipe.run.comm.messages import PendingMessage
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import World
from graphpipe.run.rounds.contents import Contents, Item, Results
from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTask
from graphpipe.schedule.gradient_tasks.rounds import Rounds

_ROUNDS_SENDING = 2
"""Rounds after which a message is waited for, which the receiver has expected since the round it was sent in."""


@dataclass(slots=True)
class _Parcel:
    # What a task has made for the readers on one device.
    readers: int
    tensors: dict[Item, Tensor] = field(default_factory=dict[Item, Tensor])
    pending: dict[Item, tuple[PendingMessage, Layout]] = field(
        default_factory=dict[Item, tuple[PendingMessage, Layout]]
    )
    writes: dict[Item, int] = field(default_factory=dict[Item, int])


# No slots: cached properties.
@dataclass(kw_only=True)
class RoundMessages:
    """The messages of one rank. Two ranks start those from one to the other in the same order: by round, then task."""

    rounds: Rounds
    placement: RankPlacement
    world: World
    contents: Contents
    sent_bytes: Counter[tuple[int, int, LayerTask]]
    """Bytes that went from one device to another, by the task that made them. Those between ranks count where they
    are sent."""
    _inbox: dict[tuple[LayerTask, int, int], _Parcel] = field(default_factory=dict[tuple[LayerTask, int, int], _Parcel])
    _sending: deque[tuple[int, PendingMessage]] = field(default_factory=deque[tuple[int, PendingMessage]])
    _round: int = 0
    _known: dict[tuple[LayerTask, int], dict[Item, Layout]] = field(
        default_factory=dict[tuple[LayerTask, int], dict[Item, Layout]]
    )

    @cached_property
    def readers(self) -> Counter[tuple[LayerTask, int]]:
        """How many tasks of a device read what a task has made. New weights are read once, as a version."""
        found = Counter((producer, self.rounds.device_of[reader]) for producer, reader in self.rounds.work.reads)
        for task, device in self.rounds.device_of.items():
            update = LayerTask("W", task.layer)
            if task.kind != "W" and self.rounds.device_of.get(update, device) != device:
                found[update, device] = 1
        return found

    @cached_property
    def targets(self) -> dict[LayerTask, tuple[int, ...]]:
        """The devices that read what a task has made, ascending."""
        found: dict[LayerTask, list[int]] = {}
        for task, device in sorted(self.readers):
            found.setdefault(task, []).append(device)
        return {task: tuple(devices) for task, devices in found.items()}

    def expect(self, task: LayerTask, micro_batch: int) -> None:
        """Start to receive what a task on another rank makes of a micro-batch."""
        source = self.placement.rank_of[self.rounds.device_of[task]]
        if source == self.world.rank:
            return
        for target in self.targets.get(task, ()):
            if self.placement.rank_of[target] != self.world.rank:
                continue
            parcel = self._inbox[task, micro_batch, target] = _Parcel(self.readers[task, target])
            for item, layout in self._items(task, target).items():
                buffer = layout.buffer(self.world.device)
                with self.world.waiting_for(source):
                    work = self.world.p2p.receive(buffer, source)
                parcel.pending[item] = PendingMessage(work, buffer, source, self.world), layout

    def deliver(self, task: LayerTask, micro_batch: int, results: Results) -> None:
        """Hand over what a task has made, or start to send it."""
        device = self.rounds.device_of[task]
        for target in self.targets.get(task, ()):
            items, peer = self._items(task, target), self.placement.rank_of[target]
            if target != device:
                self.sent_bytes[device, target, task] += sum(layout.nbytes for layout in items.values())
            if peer == self.world.rank:
                tensors = {item: results[item] for item in items}
                writes = {item: write_count(tensor) for item, tensor in tensors.items()}
                self._inbox[task, micro_batch, target] = _Parcel(self.readers[task, target], tensors, writes=writes)
                continue
            for item, layout in items.items():
                rows = layout.dense(results[item].detach())
                with self.world.waiting_for(peer):
                    work = self.world.p2p.send(rows, peer)
                self._sending.append((self._round, PendingMessage(work, rows, peer, self.world)))

    def read(self, task: LayerTask, micro_batch: int, device: int, kinds: tuple[str, ...]) -> dict[Item, Tensor]:
        """Return what a task has made for a device, and forget it with its last reader.

        Args:
            task: that has made it.
            micro_batch: of the task.
            device: of the reader.
            kinds: of the items that the reader uses.

        Raises:
            InvalidInput: another reader has overwritten it.
            PeerLost, PeerStalled: the rank that sends it is gone.
        """
        key = task, micro_batch, device
        parcel = self._inbox[key]
        for item, (message, layout) in parcel.pending.items():
            message.wait()
            parcel.tensors[item] = layout.laid_out(message.rows)
            parcel.writes[item] = write_count(parcel.tensors[item])
        parcel.pending.clear()
        used = {item: tensor for item, tensor in parcel.tensors.items() if item[0] in kinds}
        if any(write_count(tensor) != parcel.writes[item] for item, tensor in used.items()):
            name = self.contents.plan.stages[task.layer].name
            what = f"a value of layer '{name}' is overwritten by one of its readers, and another one reads it"
            raise InvalidInput(what, where="step", remedy="Leave out the operation in place.")
        parcel.readers -= 1
        if not parcel.readers:
            del self._inbox[key]
        return used

    def end_round(self) -> None:
        """Wait until what was sent two rounds before was received. All ranks have begun to receive it by then."""
        while self._sending and self._sending[0][0] <= self._round - _ROUNDS_SENDING:
            self._sending.popleft()[1].wait()
        self._round += 1

    def drain(self) -> None:
        """Wait until everything is sent."""
        while self._sending:
            self._sending.popleft()[1].wait()
        assert not self._inbox, f"nothing has read {sorted(self._inbox)[:3]}"

    def forget(self) -> None:
        """Drop all messages."""
        self._inbox.clear()
        self._sending.clear()

    def _items(self, task: LayerTask, target: int) -> dict[Item, Layout]:
        if (task, target) not in self._known:
            self._known[task, target] = self.contents.of(task, target)
        return self._known[task, target]
