"""Runs a step in a process of its own, so that a crash or a hang ends that process, and nothing else changes.

The process is a fork: it has the user's own objects, with their hooks and closures, and every step begins in the same
state. In a fork, the threads that torch computes with are gone, and a computation in the same thread would wait for
them for ever. A new thread gets new ones.
"""

import faulthandler
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, NoReturn

import torch

from graphpipe.equivalence.steps.step_record import StepRecord
from graphpipe.errors import GraphPipeError, Infeasible, InvalidInput
from graphpipe.run.device.random_state import RandomState
from graphpipe.user_frames import describe_error

_DONE, _FAILED, _REFUSED = 0, 1, 2
_NO_FORK = "autograd's threading in combination with fork"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A step that did not end as it should."""

    reason: str
    """What happened, as the end of a sentence that begins with the step; if it was refused, the whole message."""
    refused: bool = False
    """Whether GraphPipe refused the model or the plan itself."""


def isolated(step: Callable[[], StepRecord], seconds: float) -> StepRecord | Ended:
    """Return what a step computed, or how it ended.

    Args:
        step: to be run. Without a fork, as with CUDA, it runs in this process, and must restore what it changes.
        seconds: until the process is ended. Without a fork there is no limit.
    """
    if not _can_fork():
        return _here(step)
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as errors:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            _run_child(step, file, errors)
        status = _await(child, seconds)
        if status is None:
            return Ended(reason=f"did not end within {seconds:.0f} s")
        if os.WIFSIGNALED(status):
            return Ended(reason=f"ended its process by {signal.Signals(os.WTERMSIG(status)).name}")
        code = os.WEXITSTATUS(status)
        if code == _DONE:
            return StepRecord.read(file)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
        text = said[-1] if said else f"ended its process with exit code {code}"
        if _NO_FORK in text:
            return _here(step)
        return Ended(reason=text, refused=code == _REFUSED)


def _can_fork() -> bool:
    return hasattr(os, "fork") and sys.platform != "darwin" and not torch.cuda.is_initialized()


def _here(step: Callable[[], StepRecord]) -> StepRecord | Ended:
    random = RandomState.now()
    try:
        return step()
    except GraphPipeError as error:
        return Ended(reason=_reason(error), refused=isinstance(error, InvalidInput | Infeasible))
    except Exception as error:
        return Ended(reason=f"raised {describe_error(error)}")
    finally:
        random.restore()


def _reason(error: GraphPipeError) -> str:
    text = " ".join(str(error).split()).removesuffix(".")
    return text if isinstance(error, InvalidInput | Infeasible) else f"fails: {text}"


def _await(child: int, seconds: float) -> int | None:
    # None: it took too long, and was ended.
    deadline, pause = time.monotonic() + seconds, 1e-3
    try:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            time.sleep(pause)
            pause = min(0.02, 1.5 * pause)
    except BaseException:
        _kill(child)
        raise
    _kill(child)
    return None


def _kill(child: int) -> None:
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _run_child(step: Callable[[], StepRecord], file: IO[bytes], errors: IO[bytes]) -> NoReturn:
    code = _FAILED
    try:
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        faulthandler.disable()  # it would show a crash that the parent reports
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # what the forward prints was not asked for
            os.dup2(nothing, stream)
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(_outcome(step, file, errors)))
        thread.start()
        thread.join()
        code = codes[0] if codes else _FAILED
    finally:
        os._exit(code)  # without the parent's exit handlers and buffers


def _outcome(step: Callable[[], StepRecord], file: IO[bytes], errors: IO[bytes]) -> int:
    try:
        step().write(file)
    except GraphPipeError as error:
        errors.write(_reason(error).encode())
        errors.flush()
        return _REFUSED if isinstance(error, InvalidInput | Infeasible) else _FAILED
    except BaseException as error:
        if os.environ.get("GRAPHPIPE_DEBUG"):
            errors.write(traceback.format_exc().encode())
        errors.write(f"raised {describe_error(error)}".encode())
        errors.flush()
        return _FAILED
    return _DONE
