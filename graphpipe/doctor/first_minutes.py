"""The first fifteen minutes on a machine with GPUs: what each command should do there, and what it did.

The commands are those of a user. Each runs in a process of its own, so a crash of one of them is a result too.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from graphpipe.cluster import Cluster
from graphpipe.trace import Trace
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.units import format_bytes, format_seconds

STEPS, CLOSE, ROUGH, PREDICTED, TIMEOUT_SECONDS, SLACK_SECONDS = 20, 1e-3, 5e-2, 0.1, 30.0, 5.0
"""Steps of a training. Relative differences of losses, in fp32 and in bf16, and of predictions. The time limit of a
rank that is lost, and how much later the others may end."""
_LONGEST_SECONDS = 600.0
_LAST_CHARACTERS = 4000

Status = Literal["as expected", "differs", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a command did."""

    code: int
    """Its exit code; -1 if it took too long."""
    output: Mapping[str, Any]
    """The JSON object that it printed."""
    words: str
    """What it said beside that."""
    seconds: float


Command = Callable[[Sequence[str]], Done]
"""Runs a verb of `graphpipe` with `--json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step of the first minutes."""

    name: str
    command: str
    expected: str
    found: str
    status: Status
    seconds: float = 0.0
    words: str = ""
    """The end of what the command said, if something differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    name: str
    words: Sequence[str]
    expected: str
    judge: Callable[[Done], tuple[bool, str]]
    """Returns whether the result is as expected, and what was found."""
    least_devices: int = 1


def graphpipe(words: Sequence[str]) -> Done:
    """Run a verb of this installation in a process of its own."""
    start = time.monotonic()
    command = [sys.executable, "-m", "graphpipe", *words, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Done(code=-1, output={}, words="it took too long", seconds=time.monotonic() - start)
    try:
        output: Any = json.loads(done.stdout)
    except ValueError:
        output = {}
    return Done(code=done.returncode, output=output, words=done.stderr, seconds=time.monotonic() - start)


def first_minutes(cluster: str, devices: int, training: Path, folder: Path, run: Command) -> Iterator[StepResult]:
    """Run every step, and yield its result.

    Args:
        cluster: a preset or file with this machine's devices.
        devices: how many the cluster has.
        training: the configuration of the digits.
        folder: for runs and measured links.
        run: runs a verb.
    """
    reference = run(_train(training, f"local:{min(devices, 2)}", folder / "cpu"))
    loss = float(reference.output.get("loss_last", float("nan")))
    usual = dict[str, float]()
    for step in _steps(cluster, training, folder, loss, usual):
        command = f"graphpipe {' '.join(step.words)}"
        if devices < step.least_devices:
            found = f"needs {step.least_devices} devices, there is {devices}"
            yield StepResult(name=step.name, command=command, expected=step.expected, found=found, status="skipped")
            continue
        done = run(step.words)
        usual[step.name] = done.seconds
        right, found = step.judge(done)
        yield StepResult(
            name=step.name,
            command=command,
            expected=step.expected,
            found=found,
            status="as expected" if right else "differs",
            seconds=done.seconds,
            words="" if right else done.words[-_LAST_CHARACTERS:],
        )


def _train(training: Path, cluster: str, runs: Path, *changes: str) -> list[str]:
    settings = [f"cluster={cluster}", f"run.directory={runs}", f"train.steps={STEPS}"]
    return ["train", str(training), *settings, *changes]


def _steps(cluster: str, training: Path, folder: Path, loss: float, usual: Mapping[str, float]) -> Iterator[_Step]:
    def judged_loss(close: float) -> Callable[[Done], tuple[bool, str]]:
        return lambda done: _loss(done, loss, close)

    links = ["profile", "--links", "--cluster", cluster, "-o", str(folder / "machine.toml")]
    nominal = Cluster.resolve(cluster).intra_node
    bandwidth = f"{format_bytes(nominal.bandwidth_bytes_per_second)}/s"
    expected = f"half of {bandwidth} or more, at most {format_seconds(4 * nominal.latency_seconds)}"
    yield _Step(name="installation", words=["doctor"], expected="it finds no problem", judge=_installation)
    yield _Step(
        name="links",
        words=links,
        expected=expected,
        judge=lambda done: _links(done, nominal.bandwidth_bytes_per_second / 2, 4 * nominal.latency_seconds),
        least_devices=2,
    )
    same = f"the loss on the CPU, {loss:.4f}, to"
    runs = folder / "gpu"
    for name, change, close in (
        ("training", "train.precision=fp32", CLOSE),
        ("training in bf16", "train.precision=bf16", ROUGH),
        ("training with ddp", "train.engine=ddp", CLOSE),
        ("training with fsdp2", "train.engine=fsdp2", CLOSE),
    ):
        words = _train(training, cluster, runs, change)
        yield _Step(name=name, words=words, expected=f"{same} {close:.1%}", judge=judged_loss(close))
    yield _Step(
        name="prediction",
        words=_train(training, cluster, folder / "predicted", "plan.costs=profile"),
        expected=f"the time of a step, and the memory of each device, within {PREDICTED:.0%} of what was predicted",
        judge=_prediction,
    )
    limit = f"run.timeout_seconds={TIMEOUT_SECONDS:g}"
    for kind in ("kill", "raise", "stop"):
        words = [*_train(training, cluster, folder / kind, limit), "--fault", f"{kind}@rank1:step4:phase=forward"]
        yield _Step(
            name=f"a rank with a fault ({kind})",
            words=words,
            expected=f"a sentence that names rank 1, at most {TIMEOUT_SECONDS + SLACK_SECONDS:g} s after the fault",
            judge=lambda done: _fault(done, usual["training"]),
            least_devices=2,
        )


def _installation(done: Done) -> tuple[bool, str]:
    problems = [each for each in done.output.get("findings", []) if each["status"] == "problem"]
    found = "; ".join(f"{each['name']}: {each['what']}" for each in problems)
    return done.code == 0 and not problems, found or _ending(done, "no problem")


def _links(done: Done, least: float, most: float) -> tuple[bool, str]:
    links = [each["link"] for each in done.output.get("links", [])]
    if done.code or not links:
        return False, _ending(done, "no link was measured")
    slowest = min(link["bandwidth_bytes_per_second"] for link in links)
    longest = max(link["latency_seconds"] for link in links)
    return slowest >= least and longest <= most, f"{format_bytes(slowest)}/s, {format_seconds(longest)}"


def _loss(done: Done, loss: float, close: float) -> tuple[bool, str]:
    if done.code or "loss_last" not in done.output:
        return False, _ending(done, "no loss")
    found = float(done.output["loss_last"])
    return abs(found / loss - 1) <= close, f"{found:.4f}"


def _prediction(done: Done) -> tuple[bool, str]:
    if done.code or "directory" not in done.output:
        return False, _ending(done, "no run")
    run = RunFolder(Path(done.output["directory"]))
    predicted, measured = Trace.load(run.predicted_trace), Trace.load(run.measured_trace)
    ratios = [done.output["step_seconds_measured"] / done.output["step_seconds_predicted"]]
    peaks = zip(measured.peak_bytes, predicted.peak_bytes, strict=True)
    ratios += [own / planned for own, planned in peaks if own and planned]
    worst = max((abs(ratio - 1) for ratio in ratios[1:]), default=None)
    memory = "memory was not measured" if worst is None else f"memory {worst:+.0%} at worst"
    return all(abs(ratio - 1) <= PREDICTED for ratio in ratios), f"time {ratios[0] - 1:+.0%}, {memory}"


def _fault(done: Done, usual_seconds: float) -> tuple[bool, str]:
    """Judge a training with a fault in its fourth step.

    Args:
        done: the training.
        usual_seconds: of all steps of a training without a fault.
    """
    last = next((line for line in reversed(done.words.splitlines()) if line.strip()), "it said nothing")
    named = done.code not in (0, -1) and "rank 1" in done.words and "Traceback" not in done.words
    late = done.seconds - usual_seconds
    return named and late <= TIMEOUT_SECONDS + SLACK_SECONDS, f"{last} ({late:+.0f} s against a whole training)"


def _ending(done: Done, otherwise: str) -> str:
    if not done.code:
        return otherwise
    last = next((line for line in reversed(done.words.splitlines()) if line.strip()), "it said nothing")
    return f"it ended with code {done.code}: {last}"
