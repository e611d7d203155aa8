"""The world: this rank among all ranks, how they communicate, and the errors when a rank is gone."""

import json
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any, cast
from warnings import catch_warnings, filterwarnings

import torch
import torch.distributed as dist
from torch import Tensor

from graphpipe.devices.cpu import CPU
from graphpipe.devices.device_kind import DeviceKind
from graphpipe.devices.registry import kind_of
from graphpipe.errors import InvalidInput, PeerLost, PeerStalled
from graphpipe.run.comm.p2p_groups import P2PGroups, Pair
from graphpipe.run.meeting.abort_groups import abort_groups
from graphpipe.run.meeting.choose_device import choose_device
from graphpipe.run.meeting.host_address import bind_gloo_to_route_of
from graphpipe.run.meeting.peer_loss import Loss, Waiting, translate_loss
from graphpipe.run.meeting.reachability import Reachability
from graphpipe.run.meeting.rendezvous_store import bound_store, is_address

_REDUCE_SCATTER: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # pyright: ignore[reportDeprecated]
"""Torch 2.13 has it under another name."""
BACKEND_MARGIN = timedelta(seconds=30)
"""How much longer the backend of devices waits, whose watchdog ends the process. Signs of life end sooner, by name."""


@dataclass(slots=True, kw_only=True)
class World:
    """This rank among all ranks. A single rank has no peers and does not use the network."""

    rank: int
    size: int
    device: torch.device
    """The device where this rank computes."""
    timeout: timedelta
    everyone: dist.ProcessGroup | None = None
    """The group of all ranks, for tensors on their devices; None for a single rank."""
    p2p_groups: P2PGroups | None = None
    control: dist.ProcessGroup | None = None
    """The group of all ranks for what is on their hosts, such as losses. It is gloo's, which notices at once if a rank
    is lost, and a message of it does not wait for a GPU."""
    control_groups: P2PGroups | None = None
    """The groups for messages of that kind."""
    initialised_here: bool = False
    groups: dict[tuple[int, ...], dist.ProcessGroup] = field(default_factory=dict[tuple[int, ...], dist.ProcessGroup])
    hosts: dict[int, str] = field(default_factory=dict[int, str])
    """Host and stages of every rank, to describe a rank that is lost."""
    reach: Reachability = field(default_factory=Reachability)
    """Finds the hosts that are lost."""
    life: P2PGroups | None = None
    """The groups for signs of life, if the backend of the devices does not notice that a rank is lost. A thread listens
    on them, and that keeps their connections open."""
    at_close: list[Callable[[bool], object]] = field(default_factory=list[Callable[[bool], object]])
    """Called before the connections close, with whether that is after an error."""
    loss: Loss = field(default_factory=Loss)
    """The first peer that another thread of this rank has found lost."""
    waits: dict[int, Waiting] = field(default_factory=dict[int, Waiting])
    """The contexts that `waiting_for` returns, by rank."""

    @property
    def kind(self) -> DeviceKind:
        """The kind of the device."""
        return kind_of(self.device)

    @property
    def backend(self) -> str:
        """The backend of messages: NCCL between GPUs, gloo between CPUs."""
        return self.kind.backend

    @property
    def in_order(self) -> bool:
        """Whether messages do not have tags. NCCL matches messages only by their order on both ranks."""
        return self.kind.matches_by_order

    @property
    def p2p(self) -> P2PGroups:
        """Starts messages to and from other ranks."""
        assert self.p2p_groups is not None, "a single rank has no peers"
        return self.p2p_groups

    @property
    def control_p2p(self) -> P2PGroups:
        """Starts messages of tensors on the host to and from other ranks."""
        assert self.control_groups is not None, "a single rank has no peers"
        return self.control_groups

    @property
    def signs_of_life(self) -> P2PGroups:
        """Starts messages that say that a rank lives."""
        assert self.life is not None, "the backend notices a loss"
        return self.life

    def about(self, rank: int) -> str:
        """Return the end of a sentence that describes a rank; empty if nothing is known."""
        return f", {self.hosts[rank]}" if rank in self.hosts else ""

    def open_group(self, ranks: Sequence[int]) -> None:
        """Open the group of these ranks; every rank of the world must call this, in the same order."""
        key = tuple(sorted(set(ranks)))
        if len(key) > 1 and key not in self.groups:
            self.groups[key] = _new_group(list(key), self._backend_limit, self.backend)

    def group(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """Return the group of these ranks, which `open_group` opened."""
        return self.groups[tuple(sorted(set(ranks)))]

    def sum(self, tensor: Tensor, ranks: Sequence[int] | None = None) -> None:
        """Replace `tensor` by its sum over `ranks` (None: all), in place."""
        with self._group(ranks) as group:
            if group is not None:
                dist.all_reduce(tensor, group=group)

    def broadcast(self, tensor: Tensor, source: int, ranks: Sequence[int] | None = None) -> None:
        """Replace `tensor` on `ranks` (None: all) by rank `source`'s, in place."""
        with self._group(ranks) as group:
            if group is not None:
                dist.broadcast(tensor, source, group=group)

    def gather(self, tensor: Tensor, ranks: Sequence[int]) -> list[Tensor]:
        """Return the tensors of these ranks, ascending; all of them have the same shape."""
        with self._group(ranks) as group:
            if group is None:
                return [tensor]
            found = [torch.empty_like(tensor) for _ in set(ranks)]
            dist.all_gather(found, tensor, group=group)
            return found

    def sum_own(self, tensor: Tensor, ranks: Sequence[int]) -> Tensor:
        """Return an entry of the sum of contiguous tensors over these ranks (a reduce-scatter).

        Args:
            tensor: (ranks, ...). The first entry is for the lowest rank.
            ranks: which all call this.
        """
        with self._group(ranks) as group:
            if group is None:
                return tensor[0]
            found = torch.empty_like(tensor[0])
            _REDUCE_SCATTER(found.view(-1), tensor.view(-1), group=group)
            return found

    def open_pairs(self, pairs: Iterable[Pair]) -> None:
        """Open groups for the messages of these pairs of ranks; every rank must call this."""
        options = self.kind.message_options()
        limit = self._backend_limit
        self.p2p.open(pairs, lambda ranks: _new_group(ranks, limit, self.backend, options))

    @property
    def _backend_limit(self) -> timedelta:
        return self.timeout + BACKEND_MARGIN if self.life is not None else self.timeout

    def barrier(self) -> None:
        """Wait for all ranks."""
        with self.waiting_for(None):
            if self.control is not None:
                dist.all_reduce(torch.zeros(1), group=self.control)

    def exchange(self, value: object) -> list[Any]:
        """Return every rank's `value`, in rank order; values are JSON values (nothing is unpickled)."""
        with self.waiting_for(None):
            group = self.control
            if group is None:
                return [json.loads(json.dumps(value))]
            own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
            lengths = torch.zeros(self.size, dtype=torch.int64)
            lengths[self.rank] = len(own)
            dist.all_reduce(lengths, group=group)
            padded = torch.zeros(int(lengths.max()), dtype=torch.uint8)
            padded[: len(own)] = own
            texts = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(texts, padded, group=group)
            pieces = [text[:length] for text, length in zip(texts, lengths.tolist(), strict=True)]
            return [json.loads(bytes(piece.tolist())) for piece in pieces]

    def leave(self) -> None:
        """Wait until every rank calls this, then close; a peer that is already gone is not an error."""
        with suppress(PeerLost, PeerStalled):
            self.barrier()
        self.close()

    def close(self) -> None:
        """Close the connections at once, so that a peer that waits for this rank fails at once.

        Where closing a group waits for its messages, they must be done, or `abandon` is called in place of this.
        """
        self._say_goodbye(failed=False)
        self._destroy([*self._control_groups(), *self._device_groups()])

    def abandon(self) -> None:
        """Close the connections after an error, also those with messages that no rank will take."""
        if not self.kind.closing_waits:
            self.close()
            return
        self._say_goodbye(failed=True)
        aborted = abort_groups(self._device_groups())
        self._destroy([*self._control_groups(), *(self._device_groups() if aborted else [])], everything=aborted)

    def abort(self) -> None:
        """End all pending messages of the devices, from another thread. Whoever waits for them gets an error."""
        abort_groups(self._device_groups())

    def _say_goodbye(self, *, failed: bool) -> None:
        while self.at_close:
            self.at_close.pop()(failed)

    def _control_groups(self) -> list[dist.ProcessGroup]:
        return _once([self.control, *(self.control_groups.all if self.control_groups else [])])

    def _device_groups(self) -> list[dist.ProcessGroup]:
        own = [group for ranks, group in self.groups.items() if self.rank in ranks]
        return _once([*own, self.everyone, *(self.p2p_groups.all if self.p2p_groups else [])])

    def _destroy(self, groups: Sequence[dist.ProcessGroup], *, everything: bool = True) -> None:
        if dist.is_initialized():
            for group in _once(groups):
                dist.destroy_process_group(group)
            if self.initialised_here and everything:
                dist.destroy_process_group()
        self.groups.clear()
        self.everyone = self.p2p_groups = self.control = self.control_groups = self.life = None
        self.reach.close()

    def waiting_for(self, ranks: int | Sequence[int] | None) -> AbstractContextManager[None]:
        """Return the context for waiting for one rank, for several, or for any (None).

        In it, a lost rank raises PeerLost or PeerStalled.
        """
        if ranks is None:
            return translate_loss("another rank", self.reach.verdict, self.loss)
        if isinstance(ranks, int):
            waiting = self.waits.get(ranks)
            if waiting is None:
                waiting = translate_loss(f"rank {ranks}", lambda: self.about(ranks) + self.reach.verdict(), self.loss)
                self.waits[ranks] = waiting
            return waiting
        return translate_loss(f"one of ranks {sorted(set(ranks))}", self.reach.verdict, self.loss)

    @contextmanager
    def closing_on_error(self) -> Generator[None]:
        """Close if anything goes wrong inside."""
        try:
            yield
        except BaseException:
            self.abandon()
            raise

    @contextmanager
    def _group(self, ranks: Sequence[int] | None) -> Generator[dist.ProcessGroup | None]:
        group = self.everyone if ranks is None else self.groups.get(tuple(sorted(set(ranks))))
        with self.waiting_for(ranks):
            yield group


def join(device: torch.device | str | None, timeout_seconds: float, alone: bool = False) -> World:
    """Join the world that torchrun's environment describes, or that the caller has initialised.

    Args:
        device: where to compute; None is this rank's accelerator, or else the CPU (see `choose_device`).
        timeout_seconds: how long to wait for a peer that neither answers nor dies.
        alone: be a world of one rank, whatever was started or initialised.

    Raises:
        InvalidInput: the environment is incomplete, its port cannot be used, or this machine is not set up for it.
        PeerLost, PeerStalled: a peer did not come.
    """
    timeout = timedelta(seconds=timeout_seconds)
    ready = dist.is_available() and dist.is_initialized()
    size = 1 if alone else dist.get_world_size() if ready else int(os.environ.get("WORLD_SIZE", "1"))
    place = choose_device(device, size)
    if size == 1:
        return World(rank=0, size=1, device=place, timeout=timeout)
    if not ready:
        _initialise(kind_of(place).backend, size, timeout)
    world = World(rank=dist.get_rank(), size=size, device=place, timeout=timeout, initialised_here=not ready)
    everyone = [*range(size)]
    world.control, up, down = (_new_group(everyone, timeout, CPU.backend) for _ in range(3))
    world.control_groups = P2PGroups(rank=world.rank, up=up, down=down)
    if world.backend == CPU.backend:
        world.everyone, world.p2p_groups = world.control, world.control_groups
    else:
        world.everyone = group = _new_group(everyone, timeout + BACKEND_MARGIN, world.backend)
        world.p2p_groups = P2PGroups(rank=world.rank, up=group, down=group)
        group = _new_group(everyone, timeout, CPU.backend)
        world.life = P2PGroups(rank=world.rank, up=group, down=group)
    return world


def _once(groups: Iterable[dist.ProcessGroup | None]) -> list[dist.ProcessGroup]:
    # A group may serve several purposes.
    return [*{id(group): group for group in groups if group is not None}.values()]


def _new_group(ranks: list[int], timeout: timedelta, backend: str, options: object = None) -> dist.ProcessGroup:
    with translate_loss("another rank"), catch_warnings():
        # Torch sets the time limit in the options of NCCL, then warns that they had another.
        filterwarnings("ignore", "backend_options._timeout")
        group = dist.new_group(ranks, timeout=timeout, backend=backend, pg_options=options)
        return cast(dist.ProcessGroup, group)


def _initialise(backend: str, size: int, timeout: timedelta) -> None:
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InvalidInput(
            f"WORLD_SIZE is {size}, but {', '.join(missing)} is not set",
            where="environment",
            remedy="Start the ranks with torchrun or graphpipe train.",
        )
    try:
        with translate_loss("the rank at MASTER_ADDR"):
            host = os.environ["MASTER_ADDR"]
            bind_gloo_to_route_of(host)
            rank = int(os.environ["RANK"])
            if is_address(host) and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
                store: dist.Store = bound_store(rank, host, int(os.environ["MASTER_PORT"]), timeout)
            else:
                store = next(dist.rendezvous("env://", timeout=timeout))[0]
            # An agent's store outlives this world. The prefix separates the keys of this world from the next one's.
            own = dist.PrefixStore(f"world{next(_WORLDS)}", store)
            dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=timeout)
    except RuntimeError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise InvalidInput(
            f"port {os.environ['MASTER_PORT']} of {os.environ['MASTER_ADDR']} is in use",
            where="MASTER_PORT",
            remedy="Choose another port, or port 0 for any free one.",
        ) from None


_WORLDS = count()
