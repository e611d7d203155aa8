"""`make mutate`: change one operator, number or comparison at a time, and see whether the tests notice.

    python tests/support/mutate.py            all parts, each from where it was interrupted
    python tests/support/mutate.py in-flight  one part
    python tests/support/mutate.py simulator --sample 150 --seed 0    so many mutants of each part, drawn at random

Cosmic Ray makes the mutants. It changes a file in place and runs any command, so pytest reads it as it always does,
with its import mode and with frozen, slotted dataclasses (see `warm_pytest`). The files are changed in a copy of the
checkout, in `build/mutation`. A session there is an SQLite file that keeps the results, so a part goes on where it
ended. It begins again where the files have changed, and tests survivors again, because tests may have been added.
A larger sample with the same seed contains the smaller one.

Before that, the tests must pass without a change. A mutant may take several times as long as they do.

A survivor is a mutant that no test fails on. `survivors.toml` lists the known ones, each with the reason why it may
live: another program with the same results. Any other survivor makes the command fail, and so does less than 95 %.

A mutant that ran out of time counts as killed, and is shown: it may loop for ever, or be only slow.
"""

import argparse
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "mutation"
KNOWN, WARM = (Path(__file__).with_name(name) for name in ("survivors.toml", "warm_pytest.py"))
LEAST_KILLED = 0.95
OPTIONS = ("-q", "-x", "--tb=no", "--hypothesis-profile=mutate")
TIMES_AS_LONG, LEAST_SECONDS = 4.0, 15.0
"""A mutant whose tests take so many times as long as without a change, and longer than so, hangs: it is noticed."""

SAME_PROGRAMS = tuple(
    f"ReplaceComparisonOperator_{change}" for change in ("Eq_Is", "Is_Eq", "NotEq_IsNot", "IsNot_NotEq")
)
"""Operators of Cosmic Ray that are left out: Python has one object for None, for equal words of a program and for equal
small numbers, so both programs do the same. Where they do not, the linter refuses the changed line (E711, F632)."""
GUARDS = ("@dataclass", "@lru_cache", "@cache", "@staticmethod")
"""Beginnings of lines that are left out: what they say of a value, a cache or a call changes no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Files to change, and the tests nearest to them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    """The nearest and quickest first: a mutant's tests end with the first that fails."""
    left_out: tuple[str, ...] = ()
    """Tests of these that are slow for what they would notice."""


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
        tests=(
            *("tests/costs/test_cost_model.py", "tests/costs/test_parameter_bytes.py"),
            *("tests/costs/test_stage_memory.py", "tests/costs/test_task_memory.py", "tests/costs/test_sample_load.py"),
            *("tests/plans/test_inference_plan.py", "tests/plans/test_verify.py"),
        ),
        left_out=("tests/plans/test_verify.py::test_planners",),
    ),
    "op-costs": Part(
        modules=("costs/op_bytes.py", "costs/analytic.py"),
        tests=(
            *("tests/costs/test_op_bytes.py", "tests/costs/test_analytic.py", "tests/costs/test_cost_model.py"),
            *("tests/costs/test_parameter_bytes.py", "tests/costs/test_task_memory.py"),
            "tests/costs/test_sample_load.py",
        ),
    ),
    "plan-verifiers": Part(
        modules=("plans/verify.py", "plans/verify_memory.py"),
        tests=(
            *("tests/plans/test_verify.py", "tests/simulator/test_offload.py"),
            "tests/plans/test_inference_plan.py",
        ),
        left_out=("tests/plans/test_verify.py::test_planners",),
    ),
    "schedule-verifiers": Part(
        modules=("schedule/verify.py", "schedule/verify_lowered.py", "schedule/deadlock.py"),
        tests=("tests/schedule/test_verify.py", "tests/schedule/test_verify_lowered.py"),
    ),
    "lowering": Part(
        modules=("schedule/lower.py", "schedule/task_numbers.py"),
        tests=(
            *("tests/schedule/test_task_numbers.py", "tests/schedule/test_lower.py"),
            "tests/schedule/test_early_receives.py",
            "tests/schedule/test_verify_lowered.py",
        ),
    ),
    "list-scheduling": Part(
        modules=("schedule/list_scheduling/greedy.py", "schedule/list_scheduling/partial_schedule.py"),
        tests=(
            *("tests/schedule/list_scheduling/test_greedy.py", "tests/schedule/list_scheduling/test_greedy_oracle.py"),
            "tests/schedule/schedulers/test_zero_bubble.py",
            "tests/simulator/test_zero_bubble.py",
        ),
    ),
    "simulator": Part(
        modules=(
            *("simulator/activities.py", "simulator/events/engine.py", "simulator/memory.py"),
            "simulator/message_buffers.py",
        ),
        tests=(
            *("tests/simulator/test_simulate.py", "tests/simulator/test_offload.py", "tests/simulator/test_memory.py"),
            *("tests/plans/test_joint_edges.py", "tests/plans/test_inference_plan.py"),
            *("tests/simulator/test_step_loads.py", "tests/simulator/test_engine.py"),
            *("tests/simulator/test_drawings.py", "tests/simulator/test_properties.py"),
            "tests/simulator/test_message_buffers.py",
            *("tests/simulator/test_zero_bubble.py", "tests/simulator/test_step_seconds.py"),
        ),
        left_out=("tests/simulator/test_simulate.py::test_every_step",),
    ),
    "gradient-sums": Part(modules=("run/weights/gradient_sum.py",), tests=("tests/run/weights/test_gradient_sum.py",)),
    "planning-problem": Part(
        modules=tuple(
            f"planners/problem/{name}.py"
            for name in (
                *("ascending", "assign_devices", "in_order_bound", "options", "partition", "stage_costs"),
                "whole_batch_tail",
            )
        ),
        tests=(
            *(
                f"tests/planners/problem/test_{name}.py"
                for name in ("ascending", "options", "stage_costs", "assign_devices", "partition", "in_order_bound")
            ),
            "tests/planners/test_parts.py",
        ),
    ),
    "relief": Part(
        modules=tuple(f"planners/relief/{name}.py" for name in ("least_relief", "relief", "choices", "submodules")),
        tests=tuple(
            f"tests/planners/relief/test_{name}.py"
            for name in ("least_relief", "choices", "relief_steps", "relief", "submodules")
        ),
    ),
    "degraded-plans": Part(
        modules=(
            *("training/elastic/degraded_plan.py", "training/elastic/slowed_plan.py"),
            "training/elastic/first_paces.py",
        ),
        tests=("tests/training/elastic/test_rerouting.py", "tests/training/elastic/test_slow_devices.py"),
        left_out=tuple(
            f"tests/training/elastic/test_slow_devices.py::test_{name}"
            for name in ("the_ranks_are_asked_to_leave_for_a_better_plan", "a_device_that_was_slow_from_the_start")
        ),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A mutant that no test failed on."""

    module: str
    operator: str
    line: int
    diff: str

    @property
    def text(self) -> str:
        """The changed lines, without the file's name and without spaces at their ends."""
        kept = [line for line in self.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        return "\n".join(line[:1] + line[1:].strip() for line in kept)


def main(options: Sequence[str]) -> int:
    """Run parts by name, print their survivors, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="mutate.py", description="Change one operator, number or comparison at a time."
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--sample", type=int, metavar="N", help="test so many mutants of each part, drawn at random")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the sample")
    chosen = parser.parse_args(options)
    if unknown := [name for name in chosen.parts if name not in PARTS]:
        parser.error(f"unknown part '{unknown[0]}'; known: {', '.join(PARTS)}")
    known = tomllib.loads(KNOWN.read_text(encoding="utf-8"))
    with warm_server() as server:
        done = [
            run_part(name, {each["change"].strip() for each in known.get(name, [])}, server, chosen.sample, chosen.seed)
            for name in chosen.parts or PARTS
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


def run_part(name: str, known: set[str], server: Path, sample: int | None, seed: int) -> bool:
    """Run a part to its end, and return whether every survivor is known and enough are killed.

    Args:
        name: of the part.
        known: the changes of its known survivors.
        server: the socket of the process that runs the tests.
        sample: how many mutants to test; None: all.
        seed: of the sample.
    """
    folder = WORK / name
    config, session, digest = (folder / each for each in ("config.toml", "session.sqlite", "modules.sha256"))
    checkout = _copied(folder / "checkout")
    command = [sys.executable, "-S", "-E", str(WARM), "run", str(server), *OPTIONS, *PARTS[name].tests]
    command += [f"--deselect={each}" for each in PARTS[name].left_out]
    began = time.monotonic()
    if subprocess.run(command, cwd=checkout).returncode:
        print(f"{name}: the tests fail without a change: {' '.join(PARTS[name].tests)}")
        return False
    limit = max(LEAST_SECONDS, TIMES_AS_LONG * (time.monotonic() - began))
    config.write_text(_config(PARTS[name], command, limit), encoding="utf-8")
    made_of = "".join(sha256((ROOT / "graphpipe" / module).read_bytes()).hexdigest() for module in PARTS[name].modules)
    if not session.exists() or not digest.exists() or digest.read_text(encoding="ascii") != made_of:
        session.unlink(missing_ok=True)
        _cosmic_ray(checkout, "init", config, session)
        digest.write_text(made_of, encoding="ascii")
    every, drawn = _leave_out(session, sample, seed)
    _cosmic_ray(checkout, "exec", config, session)
    total, survivors, late = _results(_cosmic_ray(checkout, "dump", session), drawn)
    new = [each for each in survivors if each.text not in known]
    for title, some in (("out of time: ", late), ("", new)):
        for each in some:
            print(f"{name}: {title}{each.module}, line {each.line} ({each.operator})\n{each.text}\n")
    share = 1 - len(survivors) / total if total else 0.0
    of = f"{total} mutants" if total == every else f"{total} mutants, drawn from {every} with seed {seed},"
    print(
        f"{name}: {total - len(survivors)} of {of} killed ({100 * share:.1f} %), {len(late)} of them out of time, "
        f"{len(new)} to look at",
        flush=True,
    )
    return not new and 1 - len(new) / max(1, total) >= LEAST_KILLED


def _leave_out(session: Path, sample: int | None, seed: int) -> tuple[int, set[str]]:
    """Mark the mutants that are not to be tested. Return how many there are to draw from, and the jobs drawn.

    Survivors are tested again, because there may be new tests.
    """
    place = "module_path, start_pos_row, start_pos_col, operator_name, operator_args, occurrence"
    with closing(sqlite3.connect(session)) as database, database:
        database.execute("DELETE FROM work_results WHERE worker_outcome = 'SKIPPED' OR test_outcome = 'SURVIVED'")
        found = database.execute(f"SELECT job_id, {place} FROM mutation_specs ORDER BY {place}").fetchall()
        drawn = [job for job, *at in found if not _same_program(*at)]
        Random(seed).shuffle(drawn)
        tested = {*drawn[:sample]}
        database.executemany(
            "INSERT OR IGNORE INTO work_results (worker_outcome, job_id) VALUES ('SKIPPED', ?)",
            [(job,) for job, *_ in found if job not in tested],
        )
    return len(drawn), tested


def _same_program(module: str, line: int, column: int, operator: str, *_: object) -> bool:
    whole = (ROOT / module).read_text(encoding="utf-8").splitlines()[line - 1]
    kind, text = operator.rpartition("/")[2], whole.strip()
    # The stars and strokes of a signature are operators to Cosmic Ray. They say how arguments are passed.
    signature = kind.startswith("ReplaceBinaryOperator") and (text.startswith("def ") or text == "*,")
    # Python does not evaluate the annotation of a local variable, and refuses a wrong one of a field.
    annotation = "BitOr_" in kind and bool(re.fullmatch(r" {4,}\w+: [^=]*", whole[:column]))
    lengths = kind == "ReplaceTrueWithFalse" and "strict=True" in text  # compares two lengths that are equal
    return kind in SAME_PROGRAMS or signature or annotation or lengths or text.startswith(GUARDS)


def _copied(checkout: Path) -> Path:
    """Return a fresh copy of what the tests need, because files are changed in place."""
    shutil.rmtree(checkout, ignore_errors=True)
    for folder in ("graphpipe", "tests", "bench", "examples"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", checkout)
    return checkout


def _config(part: Part, command: Sequence[str], limit: float) -> str:
    paths = json.dumps([f"graphpipe/{module}" for module in part.modules])
    lines = ["[cosmic-ray]", f"module-path = {paths}", f"timeout = {limit:.1f}", "excluded-modules = []"]
    lines += [f"test-command = {json.dumps(' '.join(command))}", "[cosmic-ray.distributor]", 'name = "local"']
    return "\n".join(lines) + "\n"


def _cosmic_ray(checkout: Path, *words: str | Path) -> str:
    command = [sys.executable, "-m", "cosmic_ray.cli", *map(str, words)]
    environment = {"PYTHONPATH": str(checkout), "PATH": os.environ.get("PATH", "")}
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _results(dump: str, drawn: set[str]) -> tuple[int, list[Mutant], list[Mutant]]:
    """Return how many mutants were tested, those that survived, and those that ran out of time, of those drawn."""
    total, survived, late = 0, list[Mutant](), list[Mutant]()
    for text in dump.splitlines():
        work, result = json.loads(text)
        if result is None or result["worker_outcome"] != "normal" or work["job_id"] not in drawn:
            continue
        total += 1
        if result["test_outcome"] == "survived" or result["output"] == "timeout":
            for each in work["mutations"]:
                operator, line = each["operator_name"], each["start_pos"][0]
                found = Mutant(module=each["module_path"], operator=operator, line=line, diff=result["diff"] or "")
                (survived if result["test_outcome"] == "survived" else late).append(found)
    return total, survived, late


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
