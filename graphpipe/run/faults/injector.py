"""Faults injected on purpose, to test that a run survives the failures of long trainings.

    graphpipe train CONFIG.toml --fault kill@rank2:step3:phase=send --fault nan@rank0:step9
    train.faults = ["kill@rank2:step3:phase=send"]                                             # in CONFIG.toml

Off by default. A fault strikes one rank once, in one step (counted from 1, as in metrics.jsonl), when the rank first
reaches one phase of that step:

    forward, backward    before a task of that kind
    send, receive        before sending to another rank, or waiting for a message from it
    reduce               before a stage's gradients are summed over its replicas
    optimizer            before the weights change
    checkpoint           in the thread that writes this rank's files; the step must be one with a checkpoint

The kinds of fault, and what each does. With all of them the run ends in bounded time (or continues, with `--elastic`),
no process remains, the message names rank, host, stage, step and task, and the last checkpoint is unchanged:

    kill       SIGKILL. The rank's peers see closed connections within milliseconds.
    raise      an exception, as from a bug in the user's code.
    stop       SIGSTOP: the rank is alive but silent. Its peers give up after `run.timeout_seconds`, and the launcher
               kills it.
    slow       sleeps (`:seconds=X`, default 1) for less than the time limit. The step is only delayed.
    oom        allocates 2**60 bytes on the rank's device, which fails like a real shortage (`OutOfMemory`).
    nan        turns the result of a task into NaN (forward: outputs or loss; backward: a gradient). Outputs and losses
               are checked when they are computed, gradients before the update. `NonFiniteLoss` names the stage and
               micro-batch of the first bad value, and no weight has changed.
    shape      makes a value one row longer than agreed: an output of a stage (forward) or a message (send). A message
               longer than its receive buffer would abort the receiving process, and one of another type would be
               misread, because messages have no header. Therefore ranks compare the shapes and types of all values
               before the first step, and a sender checks every message before sending. The sender, which caused the
               error, reports it, and the receiver reports a lost peer.
    disk-full  "No space left on device" while the checkpoint is written.

Every fault is recorded in `faults.jsonl` in the run's folder before it strikes, so that a resumed run does not repeat
it.
"""

import errno
import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.files.regular_file import append_text, read_bytes
from graphpipe.run.faults.fault import Fault

_TOO_MANY_BYTES = 2**60


class InjectedError(RuntimeError):
    """The exception of the fault `raise`."""


@dataclass(slots=True, kw_only=True)
class Injector:
    """The faults that have yet to strike this rank."""

    armed: list[Fault] = field(default_factory=list[Fault])
    device: torch.device
    log: Path | None = None
    """The file in which faults are recorded before they strike. If it is None, they are not recorded."""

    @staticmethod
    def of(faults: Iterable[Fault], rank: int, device: torch.device, log: Path | None = None) -> "Injector":
        """Return an injector of those faults that are for this rank and have not struck before."""
        struck = _struck(log) if log is not None else set[str]()
        own = [fault for fault in faults if fault.rank == rank and str(fault) not in struck]
        return Injector(armed=own, device=device, log=log)

    def strike(self, phase: str, step: int, path: Path | None = None) -> None:
        """Carry out the faults that are due in this phase, except those that change values (see `corrupt`).

        Args:
            phase: that begins.
            step: from 1.
            path: the file that is about to be written.

        Raises:
            InjectedError: `raise`.
            RuntimeError: `oom`, as torch reports it.
            OSError: `disk-full`.
        """
        for fault in self._due(phase, step):
            if fault.kind not in ("nan", "shape"):
                self._record(fault)
                _strike(fault, self.device, path)

    def corrupt(self, phase: str, step: int, value: Tensor) -> Tensor:
        """Return the value, changed by the faults that are due in this phase."""
        for fault in self._due(phase, step):
            if fault.kind == "nan" and value.is_floating_point():
                self._record(fault)
                value = value * float("nan")
            elif fault.kind == "shape" and value.ndim:
                self._record(fault)
                value = torch.cat([value, value[:1]])
        return value

    def check_all_struck(self, step: int) -> None:
        """Check that every fault of this step has struck.

        Raises:
            InvalidInput: a fault names a phase that this rank did not reach.
        """
        for fault in self.armed:
            if fault.step == step and fault.phase != "checkpoint":
                raise InvalidInput(
                    f"rank {fault.rank} did not reach phase '{fault.phase}' in step {step}",
                    where=f"fault '{fault}'",
                    remedy="Choose another rank or phase: see which rank hosts what in the layout of the plan.",
                )

    def _due(self, phase: str, step: int) -> list[Fault]:
        return [fault for fault in self.armed if fault.phase == phase and fault.step == step]

    def _record(self, fault: Fault) -> None:
        # Recorded on the disk first, because the process may not survive the fault.
        self.armed.remove(fault)
        if self.log is not None:
            with append_text(self.log) as file:
                print(json.dumps({"fault": str(fault), "time": time.time()}), file=file, flush=True)


def _struck(log: Path) -> set[str]:
    if not (log.is_symlink() or log.exists()):
        return set()
    return {json.loads(line)["fault"] for line in read_bytes(log).decode("utf-8").splitlines()}


def _strike(fault: Fault, device: torch.device, path: Path | None) -> None:
    match fault.kind:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "slow":
            time.sleep(fault.seconds)
        case "oom":
            torch.empty(_TOO_MANY_BYTES, dtype=torch.uint8, device=device)
        case "disk-full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        case _:
            raise InjectedError(f"injected by '{fault}'")
