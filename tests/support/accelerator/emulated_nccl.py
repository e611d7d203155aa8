"""NCCL's rules on gloo: a backend of torch.distributed that the runtime uses as it would use NCCL.

order        Every communicator does one operation after the other. Messages have no tags. A pair of ranks has a
             communicator of its own (lazy), or all messages of a group share one with its collectives (eager).
first use    The first message of a pair blocks both ranks until the other comes (lazy).
operations   begin late, at random. A send ends when the peer receives.
tensors      have a type of NCCL's and are contiguous. A receive buffer is poison until the message is there, and what
             is sent must not change before it is gone.
a lost peer  is not noticed: operations with it stay pending.
destroy      waits for pending operations. Only `abort` ends them, with an error.
watchdog     ends the process with SIGABRT if an operation is pending for longer than the limit of its group.
"""

import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

NAME = "emccl"
_TYPES = (
    *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
_FOR_EVER = timedelta(days=1)
_TAG = 7
_POLL_SECONDS = 0.02


@dataclass(slots=True, kw_only=True)
class Rules:
    """How the groups of this process behave, and which rules were broken."""

    eager: bool = False
    seed: int = 0
    delay_seconds: float = 0.003
    """The longest delay of an operation; half of them are delayed."""
    broken: list[str] = field(default_factory=list[str])
    operations: int = 0
    watchdog: Callable[[], object] = lambda: os.kill(os.getpid(), signal.SIGABRT)
    """What ends the process."""


RULES = Rules()


class Pending(dist.Work):
    """An operation of a group."""

    def __init__(self, group: "EmulatedNccl", result: list[Tensor]) -> None:
        super().__init__()
        self.group, self.made, self.began = group, result, time.monotonic()
        self.done = threading.Event()
        self.error: Exception | None = None
        self.future: torch.futures.Future[list[Tensor]] = torch.futures.Future()

    def finish(self, error: Exception | None = None) -> None:
        """End it."""
        if not self.done.is_set():
            self.error = error
            self.done.set()
            if error is None:
                self.future.set_result(self.made)
            else:
                self.future.set_exception(error)  # pyright: ignore[reportArgumentType]

    def wait(self, timeout: timedelta = _FOR_EVER) -> bool:
        """Wait until it has ended. On a GPU only the stream would wait; here computing does not run ahead."""
        self.done.wait()
        if self.error is not None:
            raise self.error
        return True

    def is_completed(self) -> bool:
        """Return whether it has ended."""
        return self.done.is_set()

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Return the future of its result."""
        return self.future


class EmulatedNccl(dist.ProcessGroup):
    """A group of ranks."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # pyright: ignore[reportCallIssue]
        self._store, self._rank, self._size = store, rank, size
        self._inner: Any = dist.ProcessGroupGloo(dist.PrefixStore("inner", store), rank, size, _FOR_EVER)
        # The collectives that torch's C++ calls by itself, such as those of sharded tensors, know only backends.
        plain, custom = dist.PrefixStore("plain", store), dist.ProcessGroup.BackendType.CUSTOM
        backend = dist.ProcessGroupGloo(plain, rank, size, _FOR_EVER)
        self._register_backend(torch.device("cpu"), custom, backend)
        self._limit = timeout
        self._random = random.Random(f"{RULES.seed} {rank}")
        self._queues: dict[str, queue.Queue[tuple[Callable[[], object], Pending]]] = {}
        self._pending: list[Pending] = []
        self._over, self._name = threading.Event(), ""
        threading.Thread(target=self._watch, daemon=True).start()

    def getBackendName(self) -> str:
        return NAME

    @property
    def group_name(self) -> str:
        self._name = dist.distributed_c10d._world.pg_names.get(self, self._name)  # while it is open
        return self._name

    def send(self, tensors: list[Tensor], target: int, tag: int = 0) -> Pending:
        (tensor,) = tensors
        self._check(tensor, f"a send to {target}")
        before = _digest(tensor)

        def do() -> None:
            self._inner.send([_header(tensor)], target, _TAG).wait()
            if _digest(tensor) != before:
                RULES.broken.append(f"a {tensor.dtype} {[*tensor.shape]} for {target} was written before it was sent")
            self._inner.send([tensor.detach()], target, _TAG).wait()

        return self._post(self._of_pair(target), do, tensors)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Pending:
        (tensor,) = tensors
        self._check(tensor, f"a receive from {source}")
        _poison(tensor)

        def do() -> None:
            header = torch.zeros_like(_header(tensor))
            self._inner.recv([header], source, _TAG).wait()
            if not torch.equal(header, _header(tensor)):
                RULES.broken.append(f"{source} sent {header.tolist()}, and {_header(tensor).tolist()} was received")
                raise RuntimeError("a message of another size or type")
            self._inner.recv([tensor.detach()], source, _TAG).wait()

        return self._post(self._of_pair(source), do, tensors)

    def abort(self) -> None:
        """End what is pending."""
        self._over.set()
        error = f"NCCL communicator was aborted on rank {self._rank}."
        for work in [*self._pending]:
            work.finish(RuntimeError(error))

    def shutdown(self) -> None:
        """Wait for what is pending."""
        while any(not work.done.is_set() for work in self._pending):
            time.sleep(_POLL_SECONDS)
        self._over.set()

    def _post(self, name: str, do: Callable[[], object], result: list[Tensor]) -> Pending:
        if name not in self._queues:
            self._queues[name] = queue.Queue()
            threading.Thread(target=self._run, args=(self._queues[name],), daemon=True).start()
        work = Pending(self, result)
        self._pending = [each for each in self._pending if not each.done.is_set()] + [work]
        RULES.operations += 1
        self._queues[name].put((do, work))
        return work

    def _run(self, operations: "queue.Queue[tuple[Callable[[], object], Pending]]") -> None:
        while True:
            do, work = operations.get()
            if self._random.random() < 0.5:
                time.sleep(self._random.random() * RULES.delay_seconds)
            try:
                do()
            except RuntimeError:
                return  # The peer is gone, which NCCL would not notice: this and all later ones stay pending.
            work.finish()

    def _watch(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            now = time.monotonic()
            if any(
                now - work.began > self._limit.total_seconds() for work in [*self._pending] if not work.done.is_set()
            ):
                RULES.watchdog()
                return

    def _of_pair(self, peer: int) -> str:
        if RULES.eager:
            return "all"
        low, high = sorted((self._rank, peer))
        name = f"{low}-{high}"
        if name not in self._queues:  # The communicator is made, for which both ranks must come.
            self._store.set(f"{name} {self._rank}", "here")
            self._store.wait([f"{name} {peer}"], self._limit)
        return name

    def _check(self, tensor: Tensor, what: str) -> None:
        if tensor.dtype not in _TYPES:
            RULES.broken.append(f"{what} has the type {tensor.dtype}, which NCCL does not know")
        if not tensor.is_contiguous():
            RULES.broken.append(f"{what} is not contiguous: {[*tensor.shape]} {tensor.stride()}")


def _collective(name: str) -> Callable[..., Pending]:
    def call(group: EmulatedNccl, *arguments: Any, **options: Any) -> Pending:
        given = [each for each in _leaves(arguments) if isinstance(each, Tensor)]
        for tensor in given:
            group._check(tensor, name)
        own = getattr(group._inner, name)
        return group._post("all", lambda: own(*arguments, **options).wait(), given[:1])

    return call


for _name in (
    *("allreduce", "allreduce_coalesced", "broadcast", "allgather", "reduce_scatter", "reduce", "gather", "scatter"),
    *("_allgather_base", "_reduce_scatter_base", "barrier"),
    *("alltoall", "alltoall_base"),
):
    if hasattr(dist.ProcessGroupGloo, _name):
        setattr(EmulatedNccl, _name, _collective(_name))


# The newer names, which a group has and a backend has not.
EmulatedNccl.all_gather_single = _collective("_allgather_base")
EmulatedNccl.reduce_scatter_single = _collective("_reduce_scatter_base")


def _leaves(value: Any) -> list[Any]:
    return [leaf for each in value for leaf in _leaves(each)] if isinstance(value, (list, tuple)) else [value]


def _header(tensor: Tensor) -> Tensor:
    return torch.tensor([tensor.numel(), tensor.element_size(), int(tensor.is_floating_point())])


def _digest(tensor: Tensor) -> bytes:
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return blake2b(raw.numpy().tobytes(), digest_size=8).digest()


def _poison(tensor: Tensor) -> None:
    if tensor.numel() and tensor.is_contiguous():
        raw = tensor.detach().reshape(-1).view(torch.uint8)
        raw.fill_(1 if tensor.dtype is torch.bool else 0xFF)  # NaN in every floating-point type


def _make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> EmulatedNccl:
    return EmulatedNccl(store, rank, size, timeout)


def register() -> None:
    """Let torch.distributed know the backend."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _make, devices=["cpu"])
