"""Carries out one draw of the campaign: a real run of `graphpipe train`, its fault, and what came after it."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import torch

from bench.faults.fault_draws import BATCH, EARLIER_STEP, EVERY, STEPS, Draw
from bench.faults.fault_task import DRAW, SPENT, model
from graphpipe.files.json_body import to_body
from graphpipe.plans import Plan
from graphpipe.run.checkpoint.safetensors_files import write_tensors

TASK = Path(__file__).parent / "fault_task.py"
LIMIT_SECONDS, END_SECONDS, SILENCE_SECONDS = 240.0, 20.0, 15.0
"""A run that takes longer than the first hangs. Its processes must end within the second. Ranks wait for a silent rank
for the third."""
_PLANNING = threading.Lock()
CONFIG = """
task = "{task}:task"
cluster = "local:{ranks}"
[plan]
costs = "estimate"
{schedule}
[train]
batch_size = {batch}
steps = {steps}
checkpoint_every = {every}
checkpoint_async = {background}
initial_weights = "{weights}"
keep = 100
[optimizer]
lr = 0.01
[run]
name = "run"
timeout_seconds = {silence}
readmit_seconds = 0
"""


@dataclass(slots=True)
class Ended:
    """A command that has ended, and when each line of its output came."""

    code: int | None
    """None: it hung, and was killed."""
    seconds: float
    lines: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    left: list[str] = field(default_factory=list[str])
    """The processes that it left running."""

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(line for _, line in self.lines)

    def first(self, *marks: str, after: float = 0.0) -> tuple[float, str] | None:
        """Return the first line after a moment that holds one of these texts."""
        return next(((at, line) for at, line in self.lines if at >= after and any(m in line for m in marks)), None)


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where draws are carried out, and how programs are started."""

    folder: Path
    programs: Path
    """A folder of `graphpipe` and `python`, which start in forks of a server that has imported torch."""

    def command(self, *, forked: bool) -> list[str]:
        """Return the command of graphpipe."""
        return [str(self.programs / "graphpipe")] if forked else [sys.executable, "-m", "graphpipe"]

    def plan(self, draw: Draw) -> Path:
        """Return the file of the plan of a draw, which is made once."""
        path = self.folder / f"plan-{draw.case.name}.json"
        with _PLANNING:
            self._write_plan(draw, path)
        return path

    def _write_plan(self, draw: Draw, path: Path) -> None:
        case = draw.case
        if not path.exists():
            recompute = {"recompute": "full"} if case.schedule == "recompute" else {}
            stages = [{"ops": ops, "devices": devices, "micro_batch": 4, **recompute} for ops, devices in case.stages]
            head = {"graphpipe": "stages", "schema_version": 1, "schedule": _schedule(draw)}
            (self.folder / f"stages-{case.name}.json").write_text(json.dumps(head | {"stages": stages}))
            words = ["plan", f"{TASK}:model", "--cluster", f"local:{case.ranks}", "--batch", str(BATCH), "--stages"]
            words += [f"stages-{case.name}.json", "-o", str(path)]
            subprocess.run([*self.command(forked=True), *words], cwd=self.folder, check=True, capture_output=True)

    def reference(self, draw: Draw, config: Path, parts: Sequence[tuple[Path, int]]) -> Path:
        """Return the folder of an unbroken run in one process, which trains by each plan up to a step."""
        text = json.dumps([draw.initial_weights, *((_deciding(plan), last) for plan, last in parts)])
        path = self.folder / f"reference-{sha256(text.encode()).hexdigest()[:16]}"
        if not path.exists():
            words = [f"{plan.absolute()}:{last}" for plan, last in parts]
            part = path.with_name(f"{path.name}-{draw.number}")
            command = [
                str(self.programs / "python"),
                "-m",
                "bench.faults.fault_reference",
                str(config),
                str(part),
                *words,
            ]
            done = subprocess.run(command, cwd=self.folder, check=False, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"draw {draw.number}: the unbroken run failed: {done.stderr[-2000:]}")
            with suppress(OSError):  # Another draw has made the same one meanwhile.
                part.rename(path)
        return path


def _schedule(draw: Draw) -> str:
    return "1f1b" if draw.case.schedule == "recompute" else draw.case.schedule


def _deciding(plan: Path) -> list[object]:
    # What decides the weights. The names of devices do not.
    found = Plan.load(plan)
    return [to_body(found)[key] for key in ("stages", "schedule")]


def _weights(shop: Workshop) -> Path:
    """Return the file of the initial weights, of which each rank reads its own."""
    path = shop.folder / "weights.safetensors"
    with _PLANNING:
        if not path.exists():
            torch.manual_seed(0)
            write_tensors(path, {name: each.detach() for name, each in model()[0].named_parameters()})
    return path


def carry_out(draw: Draw, shop: Workshop) -> tuple[Path, list[Ended]]:
    """Run a draw, and then resume it where it did not end by itself. Return its folder and the commands.

    The first command is the one that is struck, except that a fault of the phase `resuming` strikes in the second one
    of a run that is not elastic.
    """
    folder = shop.folder / f"draw-{draw.number}"
    folder.mkdir()
    settings = CONFIG.format(
        task=TASK,
        ranks=draw.case.ranks,
        schedule=f'schedule = "{_schedule(draw)}"',
        batch=BATCH,
        steps=STEPS,
        every=EVERY,
        background=str(draw.case.background).lower(),
        weights=_weights(shop) if draw.initial_weights == "file" else "init",
        silence=SILENCE_SECONDS,
    )
    (folder / "run.toml").write_text(settings)
    (folder / "draw.json").write_text(json.dumps(asdict(draw)))
    words = ["train", "run.toml", "--plan", str(shop.plan(draw)), *["--elastic"] * draw.case.elastic]
    # The launcher must be the ranks' parent where it is the one that fails.
    command = shop.command(forked=not draw.launcher)
    earlier = ["--fault", f"kill@rank{draw.case.ranks - 1}:step{EARLIER_STEP}"] if draw.phase == "resuming" else []
    ran = [run([*command, *words, *earlier], folder)]
    resume = [*shop.command(forked=True), *words[:2], "--resume", "runs/run-1"]
    if draw.phase == "resuming" and not draw.case.elastic and ran[0].code == 4:
        ran.append(run([*command, *resume[-4:]], folder))
    if ran[-1].code != 0 and has_checkpoint(folder / "runs" / "run-1"):
        (folder / SPENT).touch()
        ran.append(run(resume, folder))
    return folder, ran


def has_checkpoint(run: Path) -> bool:
    """Return whether a run can be resumed."""
    return any((run / "checkpoints").glob("step-" + "[0-9]" * 8))


def run(command: Sequence[str], folder: Path) -> Ended:
    """Run a command in a folder until it ends, hangs or leaves processes behind. None of them is left."""
    start = time.monotonic()
    home = {"TMPDIR": str(folder), DRAW: str(folder / "draw.json"), "OMP_NUM_THREADS": "1"}
    ended = Ended(None, 0.0)
    with subprocess.Popen(
        command, cwd=folder, env=os.environ | home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=_read, args=(process.stdout, ended), daemon=True)
        reader.start()
        with suppress(subprocess.TimeoutExpired):
            ended.code = process.wait(LIMIT_SECONDS)
        ended.seconds = time.monotonic() - start
        ended.left = _end_all(folder, wait=ended.code is not None)
        reader.join()
    return ended


def _read(lines: Any, ended: Ended) -> None:
    for line in lines:
        ended.lines.append((time.monotonic(), line.rstrip()))


def _end_all(folder: Path, *, wait: bool) -> list[str]:
    # Only processes that work in this folder.
    end = time.monotonic() + END_SECONDS * wait
    while (left := _working_in(folder)) and time.monotonic() < end:
        time.sleep(0.1)
    names: list[str] = []
    for process in left:
        with suppress(psutil.Error):
            names.append(" ".join(process.cmdline())[-200:])
            process.kill()
    return names


def _working_in(folder: Path) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
