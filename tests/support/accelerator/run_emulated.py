"""What ranks on emulated GPUs do: importable functions of plain values."""

import os
import signal
import time
from typing import Any

import run_scenarios
from emulated_gpu import use_emulated_gpus
from emulated_nccl import RULES
from run_models import STAGES, cross_entropy, fan_batch
from torch import Tensor


def train(cut: str, options: dict[str, Any], eager: bool, seed: int) -> dict[str, Any]:
    """Train two steps, and return also which of NCCL's rules were broken."""
    use_emulated_gpus(eager=eager, seed=seed)
    found = run_scenarios.train(cut, 2, options)
    return found | {"broken": RULES.broken, "operations": RULES.operations}


def train_drawn(lines: list[Any], options: dict[str, Any], eager: bool, seed: int) -> dict[str, Any]:
    """Do the same with a cut that is given line by line."""
    STAGES["drawn"] = lines
    return train("drawn", options, eager, seed)


def train_alone(lines: list[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Train the same steps in this process, without an emulation."""
    STAGES["drawn"] = lines
    return run_scenarios.train("drawn", 2, options)


def fail_drawn(lines: list[Any], how: str, timeout: float) -> float:
    """Fail with a cut that is given line by line."""
    STAGES["drawn"] = lines
    return fail("drawn", how, timeout)


def fail(cut: str, how: str, timeout: float) -> float:
    """Train; in the second step, the rank that computes the loss raises, dies or hangs."""
    use_emulated_gpus()
    calls = 0

    def loss_fn(output: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 8 or (calls > 8 and how == "raise"):  # Some calls only try the loss, and take no errors.
            strike(how)
        return cross_entropy(output, targets)

    pipeline, _ = run_scenarios.build(cut, loss_fn=loss_fn, timeout_seconds=timeout)
    with pipeline:
        for step in range(8):
            pipeline.step(*fan_batch(seed=step))
    return 0.0


def strike(how: str) -> None:
    """Fail in one way."""
    match how:
        case "raise":
            raise KeyError("labels")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            time.sleep(20)
