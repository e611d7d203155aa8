"""`make mutate`: change one operator, number or comparison at a time, and see whether the tests notice.

    python tests/support/mutate.py            all parts, each from where it was interrupted
    python tests/support/mutate.py in-flight  one part

Cosmic Ray makes the mutants. It changes a file in place and runs any command, so pytest reads it as it always does,
with its import mode and with frozen, slotted dataclasses (see `warm_pytest`). The files are changed in a copy of the
checkout, in `build/mutation`. A session there is an SQLite file that keeps the results, so a part goes on where it
ended. Delete the folder to begin again after a change.

A survivor is a mutant that no test fails on. `survivors.toml` lists the known ones, each with the reason why it may
live: another program with the same results. Any other survivor makes the command fail, and so does less than 95 %.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "mutation"
KNOWN, WARM = (Path(__file__).with_name(name) for name in ("survivors.toml", "warm_pytest.py"))
LEAST_KILLED = 0.95
SECONDS = 120.0
"""A mutant whose tests take longer hangs, which counts as noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Files to change, and the tests nearest to them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


PARTS = {
    "in-flight": Part(
        modules=("plans/in_flight.py", "planners/raise_in_flight.py"),
        tests=("tests/plans/test_in_flight.py", "tests/planners/test_raise_in_flight.py"),
    ),
    "sharding": Part(modules=("plans/sharding.py",), tests=("tests/plans/test_sharding.py",)),
    "cost-look-up": Part(
        modules=(
            "costs/cost_model.py",
            "costs/parameter_bytes.py",
            "costs/activation_bytes.py",
            "costs/stage_memory.py",
        ),
        tests=("tests/costs", "tests/plans"),
    ),
    "plan-verifiers": Part(modules=("plans/verify.py", "plans/verify_memory.py"), tests=("tests/plans",)),
    "schedule-verifiers": Part(
        modules=("schedule/verify.py", "schedule/verify_lowered.py", "schedule/deadlock.py"),
        tests=("tests/schedule/test_verify.py", "tests/schedule/test_verify_lowered.py"),
    ),
    "lowering": Part(modules=("schedule/lower.py", "schedule/task_numbers.py"), tests=("tests/schedule",)),
    "list-scheduling": Part(
        modules=("schedule/list_scheduling/greedy.py", "schedule/list_scheduling/partial_schedule.py"),
        tests=("tests/schedule/list_scheduling", "tests/simulator/test_zero_bubble.py"),
    ),
    "simulator": Part(
        modules=(
            *("simulator/activities.py", "simulator/engine.py", "simulator/memory.py"),
            "simulator/message_buffers.py",
        ),
        tests=("tests/simulator",),
    ),
    "gradient-sums": Part(modules=("run/weights/gradient_sum.py",), tests=("tests/run/weights/test_gradient_sum.py",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """A mutant that no test noticed."""

    module: str
    operator: str
    line: int
    diff: str

    @property
    def text(self) -> str:
        """The changed lines, without the file's name and without spaces at their ends."""
        kept = [line for line in self.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        return "\n".join(line[:1] + line[1:].strip() for line in kept)


def main(names: Sequence[str]) -> int:
    """Run parts by name, print their survivors, and return the exit code."""
    if unknown := [name for name in names if name not in PARTS]:
        print(f"unknown part '{unknown[0]}'; known: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    known = tomllib.loads(KNOWN.read_text(encoding="utf-8"))
    with warm_server() as server:
        done = [
            run_part(name, {each["change"].strip() for each in known.get(name, [])}, server) for name in names or PARTS
        ]
    return 0 if all(done) else 1


@contextmanager
def warm_server() -> Generator[Path]:
    """Start the process whose forks run the tests, and return its socket."""
    with tempfile.TemporaryDirectory(prefix="graphpipe-mutate-") as folder:
        path = Path(folder) / "socket"
        with subprocess.Popen([sys.executable, str(WARM), "serve", str(path)], stdin=subprocess.DEVNULL) as process:
            while not path.exists():
                time.sleep(0.1)
                if process.poll() is not None:
                    raise RuntimeError("the process that runs the tests has ended")
            yield path
            process.terminate()


def run_part(name: str, known: set[str], server: Path) -> bool:
    """Run a part to its end, and return whether every survivor is known and enough are killed."""
    folder = WORK / name
    config, session = folder / "config.toml", folder / "session.sqlite"
    checkout = _copied(folder / "checkout")
    config.write_text(_config(PARTS[name], server), encoding="utf-8")
    if not session.exists():
        _cosmic_ray(checkout, "init", config, session)
    _cosmic_ray(checkout, "exec", config, session)
    total, survivors = _results(_cosmic_ray(checkout, "dump", session))
    new = [each for each in survivors if each.text not in known]
    for each in new:
        print(f"{name}: {each.module}, line {each.line} ({each.operator})\n{each.text}\n")
    share = 1 - len(survivors) / total if total else 0.0
    print(f"{name}: {total - len(survivors)} of {total} mutants killed ({100 * share:.1f} %), {len(new)} to look at")
    return not new and 1 - len(new) / max(1, total) >= LEAST_KILLED


def _copied(checkout: Path) -> Path:
    """Return a fresh copy of what the tests need, because files are changed in place."""
    shutil.rmtree(checkout, ignore_errors=True)
    for folder in ("graphpipe", "tests", "bench", "examples"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", checkout)
    return checkout


def _config(part: Part, server: Path) -> str:
    paths = json.dumps([f"graphpipe/{module}" for module in part.modules])
    tests = " ".join(part.tests)
    command = f"{sys.executable} -S -E {WARM} run {server} -q -x -p no:cacheprovider {tests}"
    lines = ["[cosmic-ray]", f"module-path = {paths}", f"timeout = {SECONDS}", "excluded-modules = []"]
    lines += [f"test-command = {json.dumps(command)}", "[cosmic-ray.distributor]", 'name = "local"']
    return "\n".join(lines) + "\n"


def _cosmic_ray(checkout: Path, *words: str | Path) -> str:
    command = [sys.executable, "-m", "cosmic_ray.cli", *map(str, words)]
    environment = {"PYTHONPATH": str(checkout), "PATH": os.environ.get("PATH", "")}
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _results(dump: str) -> tuple[int, list[Survivor]]:
    """Return the number of mutants that were tested, and those that survived."""
    total, found = 0, list[Survivor]()
    for text in dump.splitlines():
        work, result = json.loads(text)
        if result is None or result["worker_outcome"] != "normal":
            continue
        total += 1
        if result["test_outcome"] == "survived":
            for each in work["mutations"]:
                operator, line = each["operator_name"], each["start_pos"][0]
                diff = result["diff"] or ""
                found.append(Survivor(module=each["module_path"], operator=operator, line=line, diff=diff))
    return total, found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
