"""The world: which rank this process is, how the ranks talk, and what it means when one of them does not."""

import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from types import TracebackType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from graphpipe.errors import GraphPipeError, InvalidInput, PeerLost, PeerStalled
from graphpipe.run.comm.host_address import stay_on_the_way_to
from graphpipe.run.comm.p2p_groups import Ways
from graphpipe.run.comm.reachability import Reach
from graphpipe.run.comm.rendezvous_store import bound_store, is_address


@dataclass(slots=True, kw_only=True)
class World:
    """This rank among its peers. A world of one talks to nobody and needs no network."""

    rank: int
    size: int
    device: torch.device
    """Where this rank computes."""
    timeout: timedelta
    everyone: dist.ProcessGroup | None = None
    """For what all ranks do together; None in a world of one, as `ways`."""
    ways: Ways | None = None
    initialised_here: bool = False
    groups: dict[tuple[int, ...], dist.ProcessGroup] = field(default_factory=dict[tuple[int, ...], dist.ProcessGroup])
    hosts: dict[int, str] = field(default_factory=dict[int, str])
    """What is known of other ranks: host and stages, by rank, to name a rank that is lost."""
    reach: Reach = field(default_factory=Reach)
    """Tells which hosts are lost."""
    waits: dict[int, "Waiting"] = field(default_factory=dict[int, "Waiting"])
    """What `waiting_for` returns, by rank."""

    @property
    def backend(self) -> str:
        """NCCL between GPUs, gloo between CPUs."""
        return "nccl" if self.device.type == "cuda" else "gloo"

    @property
    def in_order(self) -> bool:
        """Whether messages have no tags: NCCL's are told apart by the order alone in which both ends list them."""
        return self.backend == "nccl"

    @property
    def messages(self) -> Ways:
        """What starts messages to and from other ranks."""
        assert self.ways is not None, "a world of one talks to nobody"
        return self.ways

    def about(self, rank: int) -> str:
        """Return what is known of a rank, to be put at the end of a sentence."""
        return f", {self.hosts[rank]}" if rank in self.hosts else ""

    def open_group(self, ranks: Sequence[int]) -> None:
        """Make the group of these ranks; every rank of the world must call this, in the same order."""
        key = tuple(sorted(set(ranks)))
        if len(key) > 1 and key not in self.groups:
            self.groups[key] = _new_group(list(key), self.timeout, self.backend)

    def group(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """Return the group of these ranks, which `open_group` has made."""
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

    def barrier(self) -> None:
        """Wait for all ranks."""
        arrived = torch.zeros(1, device=self.device)
        self.sum(arrived)
        arrived.item()  # on a GPU only this waits

    def exchange(self, value: object) -> list[Any]:
        """Return every rank's `value`, in rank order; values are what JSON can hold (nothing is unpickled)."""
        with self._group(None) as group:
            if group is None:
                return [json.loads(json.dumps(value))]
            own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
            lengths = torch.zeros(self.size, dtype=torch.int64)
            lengths[self.rank] = len(own)
            lengths = lengths.to(self.device)
            dist.all_reduce(lengths, group=group)
            padded = torch.zeros(int(lengths.max()), dtype=torch.uint8)
            padded[: len(own)] = own
            texts = [torch.empty_like(padded, device=self.device) for _ in range(self.size)]
            dist.all_gather(texts, padded.to(self.device), group=group)
            pieces = [text[:length].cpu() for text, length in zip(texts, lengths.tolist(), strict=True)]
            return [json.loads(bytes(piece.tolist())) for piece in pieces]

    def leave(self) -> None:
        """Wait until every rank wants to leave, then close; a peer that is gone already is no error."""
        with suppress(PeerLost, PeerStalled):
            self.barrier()
        self.close()

    def close(self) -> None:
        """Leave now: close the connections, so that a peer still waiting for this rank learns of it at once."""
        groups = [*self.groups.values(), self.everyone, *([self.ways.up, self.ways.down] if self.ways else [])]
        if dist.is_initialized():
            for group in {id(group): group for group in groups if group is not None}.values():
                dist.destroy_process_group(group)
            if self.initialised_here:
                dist.destroy_process_group()
        self.groups.clear()
        self.everyone = self.ways = None
        self.reach.close()

    def waiting_for(self, ranks: int | Sequence[int] | None) -> AbstractContextManager[None]:
        """Return what to be inside of where one rank, some of several, or any (None) is waited for.

        Their loss is PeerLost or PeerStalled there.
        """
        if ranks is None:
            return translate_loss("another rank", self.reach.verdict)
        if isinstance(ranks, int):
            found = self.waits.get(ranks)
            if found is None:
                found = translate_loss(f"rank {ranks}", lambda: self.about(ranks) + self.reach.verdict())
                self.waits[ranks] = found
            return found
        return translate_loss(f"one of ranks {sorted(set(ranks))}", self.reach.verdict)

    @contextmanager
    def closing_on_error(self) -> Generator[None]:
        """Close if anything goes wrong inside."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _group(self, ranks: Sequence[int] | None) -> Generator[dist.ProcessGroup | None]:
        group = self.everyone if ranks is None else self.groups.get(tuple(sorted(set(ranks))))
        with self.waiting_for(ranks):
            yield group


def join(device: torch.device | str | None, timeout_seconds: float) -> World:
    """Enter the world that torchrun's environment describes, or that the caller has initialised already.

    Args:
        device: where to compute; None takes `cuda:LOCAL_RANK` where there is CUDA, the CPU elsewhere.
        timeout_seconds: how long to wait for a peer that neither answers nor dies.

    Raises:
        InvalidInput: the environment is incomplete, or its port cannot be used.
        PeerLost, PeerStalled: a peer did not come.
    """
    place = _choose_device(device)
    timeout = timedelta(seconds=timeout_seconds)
    ready = dist.is_available() and dist.is_initialized()
    size = dist.get_world_size() if ready else int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World(rank=0, size=1, device=place, timeout=timeout)
    if not ready:
        _initialise("nccl" if place.type == "cuda" else "gloo", size, timeout)
    world = World(rank=dist.get_rank(), size=size, device=place, timeout=timeout, initialised_here=not ready)
    everyone = world.everyone = _new_group(list(range(size)), timeout, world.backend)
    up, down = (everyone if world.in_order else _new_group(list(range(size)), timeout, world.backend) for _ in range(2))
    world.ways = Ways(rank=world.rank, up=up, down=down)
    return world


def _new_group(ranks: list[int], timeout: timedelta, backend: str) -> dist.ProcessGroup:
    with translate_loss("another rank"):
        return cast(dist.ProcessGroup, dist.new_group(ranks, timeout=timeout, backend=backend))


def _choose_device(device: torch.device | str | None) -> torch.device:
    local = int(os.environ.get("LOCAL_RANK", "0"))
    try:
        place = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
    except RuntimeError:
        raise InvalidInput(f"'{device}' is no device", remedy="Write cpu, cuda or cuda:0.") from None
    if place.type != "cuda":
        return place
    place = place if ":" in str(place) else torch.device("cuda", local)
    if place.index >= torch.cuda.device_count():
        raise InvalidInput(
            f"this rank would compute on {place}, the machine has {torch.cuda.device_count()} CUDA devices",
            remedy="Start fewer processes per machine, or pass device='cpu'.",
        )
    torch.cuda.set_device(place)
    return place


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
            stay_on_the_way_to(host)
            rank = int(os.environ["RANK"])
            if is_address(host) and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
                store: dist.Store = bound_store(rank, host, int(os.environ["MASTER_PORT"]), timeout)
            else:
                store = next(dist.rendezvous("env://", timeout=timeout))[0]
            # An agent's store outlives this world: the next world of these ranks must not meet in this one's traces.
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


def _nothing() -> str:
    return ""


def translate_loss(peer: str, about: Callable[[], str] = _nothing) -> "Waiting":
    """Return what turns what torch.distributed raises inside when a peer goes away into PeerLost or PeerStalled.

    Args:
        peer: who is waited for, as the subject of the sentence.
        about: returns the end of the sentence: what else is known of it, and found out once it is lost.
    """
    return Waiting(peer, about)


@dataclass(frozen=True, slots=True)
class Waiting:
    """See `translate_loss`. A class, because a generator's context takes longer, and is around every message."""

    peer: str
    about: Callable[[], str]

    def __enter__(self) -> None:
        """Begin to wait."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Raise what an error of torch means."""
        if not isinstance(error, RuntimeError) or isinstance(error, GraphPipeError):
            return
        text = str(error).lower()
        if "timed out" in text or "timeout" in text:
            what = f"{self.peer} did not answer within the time limit{self.about()}"
            raise PeerStalled(what, remedy=_LOOK) from error
        if any(sign in text for sign in _SIGNS_OF_LOSS):
            raise PeerLost(f"{self.peer} died or closed its connection{self.about()}", remedy=_LOOK) from error


_WORLDS = count()
_LOOK = "Look at that rank's own message: it came first."
_SIGNS_OF_LOSS = ("connection", "broken pipe", "remote process", "socket", "peer")
