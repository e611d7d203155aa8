"""Faults injected on purpose, to see that a run survives what a week of training brings.

    graphpipe train CONFIG.toml --fault kill@rank2:step3:phase=send --fault nan@rank0:step9
    train.faults = ["kill@rank2:step3:phase=send"]                                             # in CONFIG.toml

Off by default. A fault strikes one rank, once, in one step (counted from 1, as in metrics.jsonl), the first time the
rank comes to one phase of it:

    forward, backward    before a task of that kind, on the rank that does it
    send, receive        before a message to, or the wait for one from, another rank
    reduce               before a stage's gradients are summed over its replicas
    optimizer            before the weights change
    checkpoint           in the thread that writes this rank's files; the step must be one with a checkpoint

What strikes, and what must come of it. In every case the run ends (or, with `--elastic`, goes on) in bounded time, no
process is left behind, the message names rank, host, stage, step and task, and the last checkpoint is untouched:

    kill       SIGKILL: no word from the rank. Its peers see closed connections within milliseconds.
    raise      an exception, as from a bug in the user's code.
    stop       SIGSTOP: alive, silent. Its peers give up after `run.timeout_seconds`, the launcher kills it.
    slow       sleeps (`:seconds=X`, default 1), less than the limit: nothing happens but the delay.
    oom        allocates 2**60 bytes on the rank's device, which fails as a real shortage does (`OutOfMemory`).
    nan        spoils what a task computed (forward: outputs or loss; backward: a gradient). Every output and loss is
               looked at as it is computed, every stage's gradients before the update: `NonFiniteLoss` names the stage
               and micro-batch where the first bad value showed, and no weight has changed.
    shape      makes a value one row longer than agreed: in what a stage returns (forward), or in a message (send).
               A message that is longer than its receive buffer would abort the receiving process, and one of another
               type be misread. There is no header to check on arrival: ranks compare the shapes and types of all
               values before the first step, and each sender compares every message with them just before it leaves,
               so that the sender, who is to blame, fails with a sentence and the receiver sees a lost peer.
    disk-full  "No space left on device" while the checkpoint is written.

Every fault is noted in `faults.jsonl` in the run's folder before it strikes, so that a run which goes on after it
does not meet it again.
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
from graphpipe.run.faults.fault import Fault

LOG = "faults.jsonl"
_TOO_MANY_BYTES = 2**60


class InjectedError(RuntimeError):
    """What the fault `raise` raises."""


@dataclass(slots=True, kw_only=True)
class Injector:
    """The faults that are still to strike this rank."""

    armed: list[Fault] = field(default_factory=list[Fault])
    device: torch.device
    log: Path | None = None
    """Where faults are noted as they strike; None keeps them in mind only."""

    @staticmethod
    def of(faults: Iterable[Fault], rank: int, device: torch.device, log: Path | None = None) -> "Injector":
        """Return those of the faults that concern this rank and have not struck before."""
        struck = _struck(log) if log is not None else set[str]()
        own = [fault for fault in faults if fault.rank == rank and str(fault) not in struck]
        return Injector(armed=own, device=device, log=log)

    def strike(self, phase: str, step: int, path: Path | None = None) -> None:
        """Do what is due in this phase, except to spoil values; `path` is what is about to be written.

        Raises:
            InjectedError: `raise`.
            RuntimeError: `oom`, as torch reports it.
            OSError: `disk-full`.
        """
        for fault in self._due(phase, step):
            if fault.kind not in ("nan", "shape"):
                self._note(fault)
                _strike(fault, self.device, path)

    def spoil(self, phase: str, step: int, value: Tensor) -> Tensor:
        """Return the value as the faults that are due leave it."""
        for fault in self._due(phase, step):
            if fault.kind == "nan" and value.is_floating_point():
                self._note(fault)
                value = value * float("nan")
            elif fault.kind == "shape" and value.ndim:
                self._note(fault)
                value = torch.cat([value, value[:1]])
        return value

    def check_all_struck(self, step: int) -> None:
        """Check that nothing of this step is left over.

        Raises:
            InvalidInput: a fault names a phase that this rank did not come to.
        """
        for fault in self.armed:
            if fault.step == step and fault.phase != "checkpoint":
                raise InvalidInput(
                    f"rank {fault.rank} had nothing for it to strike in phase '{fault.phase}' of step {step}",
                    where=f"fault '{fault}'",
                    remedy="Choose another rank or phase: see which rank hosts what in the layout of the plan.",
                )

    def _due(self, phase: str, step: int) -> list[Fault]:
        return [fault for fault in self.armed if fault.phase == phase and fault.step == step]

    def _note(self, fault: Fault) -> None:
        # On the disk before it strikes: nothing may be left of this process after.
        self.armed.remove(fault)
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as file:
                print(json.dumps({"fault": str(fault), "time": time.time()}), file=file, flush=True)


def _struck(log: Path) -> set[str]:
    if not log.exists():
        return set()
    return {json.loads(line)["fault"] for line in log.read_text(encoding="utf-8").splitlines()}


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
