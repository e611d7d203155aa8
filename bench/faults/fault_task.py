"""The task of the campaign of faults. Its module, its data and its imports carry out the fault that was drawn.

GraphPipe's own `--fault` is not used: a fault happens here in the user's module, in the middle of a call of torch or of
the runtime, or at any later moment by a signal. Every process of a run imports this file. Only ranks are struck, each
once in a run, however often it is started: a file says that it was.

The loss function notes which samples it has seen in which step.
"""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import graphpipe as gp

DRAW = "GRAPHPIPE_BENCH_DRAW"
"""The environment variable with the path of the draw. Beside it lie the notes of the processes."""
BATCHES, WIDTH, MOST_BYTES = 4, 8, 2**60
DATA_SECONDS, SLOW_SECONDS = 0.03, 1.0
LAUNCHER = "launcher"
WITHOUT_STEP = ("start", "filling", "reading", "exporting", "resuming")
"""The phases that a run has once, or before its first step."""
SPENT = "spent"
"""A file with this name beside the draw ends all faults."""
_NUMBER = re.compile(r"\d+")


class DrawnError(RuntimeError):
    """The exception of the kind `raise`."""


@dataclass(slots=True)
class Here:
    """This process: its rank, its present step, and the fault that waits for it."""

    folder: Path
    rank: int
    fault: dict[str, Any] | None
    step: int = 0

    @staticmethod
    def of() -> "Here | None":
        """Return this process if it is a rank of a campaign."""
        if DRAW not in os.environ or "RANK" not in os.environ:
            return None
        path, rank = Path(os.environ[DRAW]), int(os.environ["RANK"])
        drawn: dict[str, Any] = json.loads(path.read_text())
        over = any((path.parent / name).exists() for name in (f"struck-{rank}", SPENT))
        mine = rank in drawn["culprits"] and not over
        return Here(path.parent, rank, drawn if mine else None)

    def reach(self, phase: str, *, late: bool = False, step: int | None = None) -> None:
        """Strike if the fault waits for this phase of this step; None is the present one."""
        fault = self.fault
        if (
            fault is None
            or fault["phase"] != phase
            or fault["late"] != late
            or fault["kind"] in ("nan", "wrong message")
        ):
            return
        if phase in WITHOUT_STEP or (step or self.step) == fault["step"]:
            self.note(fault)
            if fault["delay_seconds"]:
                threading.Timer(fault["delay_seconds"], self._strike, [fault]).start()
            else:
                self._strike(fault)

    def changes(self, phase: str) -> dict[str, Any] | None:
        """Return the fault if a value of this phase is to be changed now."""
        fault = self.fault
        if fault is None or fault["kind"] not in ("nan", "wrong message"):
            return None
        if fault["phase"] != phase or self.step != fault["step"]:
            return None
        self.note(fault)
        return fault

    def note(self, fault: dict[str, Any]) -> None:
        """Write down that the fault strikes, because the process may not survive it."""
        self.fault = None
        now = {"seconds": time.monotonic() + fault["delay_seconds"], "unix": time.time(), "step": self.step}
        (self.folder / f"struck-{self.rank}").write_text(json.dumps(now))

    def _strike(self, fault: dict[str, Any]) -> None:
        kind, own = fault["kind"], os.getpid()
        if kind == "two ranks":
            first = self.rank == fault["culprits"][0]
            kind = {"kill": "kill", "raise": "raise"}.get(fault["way"], "kill" if first else "stop")
        match kind:
            case "kill":
                os.kill(own, signal.SIGKILL)
            case "stop":
                os.kill(own, signal.SIGSTOP)
            case "sigterm":
                os.kill(own, signal.SIGTERM)
            case "slow":
                time.sleep(SLOW_SECONDS)
            case "out of memory":
                _ = torch.empty(MOST_BYTES, dtype=torch.uint8) if fault["way"] == "torch" else bytearray(MOST_BYTES)
            case "disk full":
                _fill_disk(fault["way"])
            case "launcher killed" | "launcher terminated":
                launcher = int(Path(os.environ["GRAPHPIPE_STATUS_FOLDER"], LAUNCHER).read_text())
                os.kill(launcher, signal.SIGKILL if kind.endswith("killed") else signal.SIGTERM)
            case _:
                raise DrawnError(f"drawn fault {fault['number']} on rank {self.rank}")


def _fill_disk(way: str) -> None:
    if way == "error":
        raise OSError(28, os.strerror(28), "a file of the campaign")
    import resource  # On other systems than Unix this kind is not drawn.

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@cache
def here() -> Here | None:
    """Return this process if it is a rank of a campaign."""
    return Here.of()


def _around(owner: Any, name: str, phase: str) -> None:
    # Reach the phase before and after every call of a function.
    call: Callable[..., Any] = getattr(owner, name)

    def reaching(*args: Any, **kwargs: Any) -> Any:
        rank = here()
        assert rank is not None
        step = _step_of(args[0]) if phase == "saving" else None
        rank.reach(phase, step=step)
        found = call(*args, **kwargs)
        rank.reach(phase, late=True, step=step)
        return found

    setattr(owner, name, reaching)


def _step_of(folder: Path) -> int:
    """Return the step that the folder of a checkpoint names."""
    return int(_NUMBER.findall(folder.name)[0])


def _around_tensors() -> None:
    """Reach a phase before and after each tensor that is written: of a checkpoint, or of the final weights."""
    from graphpipe.run.tensor_files.tensor_file import TensorFile

    add = TensorFile.add

    def reaching(self: TensorFile, name: str, tensor: Tensor) -> None:
        folder, rank = Path(self._file.name).parent, here()  # pyright: ignore[reportPrivateUsage]
        assert rank is not None
        of_checkpoint = folder.name.startswith("step-")
        phase, step = ("tensor", _step_of(folder)) if of_checkpoint else ("exporting", None)
        rank.reach(phase, step=step)
        add(self, name, tensor)
        rank.reach(phase, late=True, step=step)

    TensorFile.add = reaching


def _watch_calls() -> None:
    """Put the phases that are not in the user's module around the calls of this rank."""
    from graphpipe.run import pipeline_parts
    from graphpipe.run.checkpoint import checkpoints
    from graphpipe.run.comm.p2p_groups import P2PGroups
    from graphpipe.run.sources.safetensors_reader import SafetensorsReader
    from graphpipe.run.weights import sync_allreduce

    _around(pipeline_parts, "host_tensors", "filling")
    _around(SafetensorsReader, "read", "reading")
    _around_tensors()
    _around(P2PGroups, "send", "send")
    _around(P2PGroups, "receive", "receive")
    _around(sync_allreduce, "sum_between_ranks", "reduce")
    _around(checkpoints, "write_rank_files", "saving")
    _around(checkpoints, "restore", "resuming")

    def before(*_: Any) -> None:
        _reach("optimizer")

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        _reach("optimizer", late=True)
        rank = here()
        if rank is not None and rank.changes("optimizer"):
            with torch.no_grad():
                optimizer.param_groups[0]["params"][0].mul_(float("nan"))

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _reach(phase: str, *, late: bool = False) -> None:
    if (rank := here()) is not None:
        rank.reach(phase, late=late)


class Layer(nn.Module):
    """A linear layer in which faults strike: (n, inputs) -> (n, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        if here() is None:
            return torch.tanh(self.linear(x))
        _reach("forward")
        found = torch.tanh(self.linear(x))
        _reach("forward", late=True)
        if found.requires_grad:
            found.register_hook(_in_backward)
        return _changed(found)


class Sum(nn.Module):
    """The last layer: twice (n, WIDTH) -> (n, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.out = Layer(WIDTH, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.out(a + b)


def _in_backward(gradient: Tensor) -> Tensor | None:
    _reach("backward")
    _reach("backward", late=True)
    rank = here()
    if rank is not None and rank.changes("backward"):
        return gradient * float("nan")
    return None


def _changed(value: Tensor) -> Tensor:
    rank = here()
    fault = rank and rank.changes("forward")
    if not fault:
        return value
    if fault["kind"] == "nan":
        return value * float("nan")
    return torch.cat([value, value[:1]]) if fault["way"] == "rows" else value.double()


def model() -> tuple[nn.Module, dict[str, Tensor]]:
    """Return two towers of two layers and their sum, and example inputs."""
    towers = {"a1": Layer(4, WIDTH), "a2": Layer(WIDTH, WIDTH), "b1": Layer(4, WIDTH), "b2": Layer(WIDTH, WIDTH)}
    edges = {"a1": ["x"], "a2": ["a1"], "b1": ["y"], "b2": ["b1"], "sum": ["a2", "b2"]}
    module = gp.DagModule({**towers, "sum": Sum()}, inputs=edges)
    return module, {"x": torch.randn(2, 4), "y": torch.randn(2, 4)}


def epoch(number: int, batch_size: int, seed: int) -> Iterator[tuple[Any, Tensor]]:
    """Yield the mini-batches of an epoch. The last column of the targets numbers the samples of the whole run."""
    generator = torch.Generator().manual_seed(1000 * seed + number)
    rank = here()
    for place in range(BATCHES):
        step = number * BATCHES + place + 1
        x, y = (torch.randn(batch_size, 4, generator=generator) for _ in range(2))
        samples = torch.arange((step - 1) * batch_size, step * batch_size, dtype=torch.float32)[:, None]
        if rank is not None:
            rank.step = step
            time.sleep(DATA_SECONDS)
        yield {"x": x, "y": y}, torch.cat([(x - y).sum(1, keepdim=True), samples], 1)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error, and note the samples."""
    rank = here()
    # A stage that recomputes calls this twice, and an evaluation without gradients.
    if rank is not None and torch.is_grad_enabled():
        note = {"launch": os.environ.get("GRAPHPIPE_STATUS_FOLDER", ""), "step": rank.step}
        note |= {"time": time.monotonic(), "samples": [int(each) for each in targets[:, 1].tolist()]}
        with (rank.folder / f"samples-{rank.rank}-{os.getpid()}.jsonl").open("a") as file:
            print(json.dumps(note), file=file)
    return nn.functional.mse_loss(outputs, targets[:, :1])


def task() -> gp.Task:
    """Return the task. In a rank, faults of the phase `start` strike here."""
    rank = here()
    if rank is not None:
        _watch_calls()
        rank.reach("start")
    _, inputs = model()
    if rank is not None:
        rank.reach("start", late=True)
    return gp.Task(
        module=lambda: model()[0], example_inputs=inputs, loss_fn=loss, epoch=epoch, held_out=next(epoch(99, 32, 0))
    )
