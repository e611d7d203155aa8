"""Every command and snippet of README and documentation works as written. Each page runs in an empty folder.

A block with `title="FILE"` is written to that file. The bash blocks run in order. All python blocks of a page run after
them, in one process. `not-run="REASON"` marks commands that a test cannot run. The command line's own parser must
accept their arguments, and those of `text` blocks, which are synopses. `console` shows what the bash block before it
prints, or what its own commands print, which follow a `$`. `mermaid` is a picture.
"""

import ast
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pytest
from docs_shell import prepare
from forked_programs import ROOT

import graphpipe
from graphpipe.cli.main import make_parser

BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^\s*(```|~~~)", re.MULTILINE)
PAGES = sorted(page for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if FENCE.search(page.read_text()))
SLOW = {
    *("worked-example", "published-layout", "backends", "splits", "cluster", "tensor", "inference"),
    *("faults", "configuration", "loop", "memory", "balance", "watching", "asynchronous", "training", "own-model"),
    *(
        "data",
        "sharing",
        "report",
        "checks",
        "large-models",
        "export",
        "tutorial",
        "adapters",
        "lightning",
        "loads",
        "trainer",
    ),
}
"""Pages of two processor seconds and more, whose commands have tests in their rooms too (`make test-slow`)."""
NOT_RUN = {"needs two hosts", "needs a GPU", "needs a container of NVIDIA", "needs SLURM", "makes its environment"}
SECONDS = 400


def run(command: list[str], folder: Path, environment: dict[str, str], *, may_fail: bool = False) -> str:
    """Run a command, and return what it printed."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert may_fail or process.returncode == 0, f"{command[-1]}\n{out}\n{err}"
    return out + err


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page.stem in SLOW else []) for page in PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_page_works_as_written(page: Path, tmp_path: Path) -> None:
    environment = prepare(tmp_path)
    text = page.read_text()
    blocks = BLOCK.findall(text)
    assert 2 * len(blocks) == len(FENCE.findall(text)), "a block without a language"
    session: list[str] = []
    printed = ""
    for language, options, body in blocks:
        if reason := re.search(r'not-run="([^"]*)"', options):
            assert language == "bash"
            assert reason[1] in NOT_RUN
            check_commands(body)
        elif title := re.search(r'title="([^"]*)"', options):
            (tmp_path / title[1]).write_text(body)
        elif language == "text":
            check_commands(body)
        elif language == "bash":
            printed = run(["bash", "-euc", body], tmp_path, environment)
        elif language == "python":
            session.append(body)
        elif language == "console":
            check_printed(body, printed, lambda line: run(["bash", "-uc", line], tmp_path, environment, may_fail=True))
        else:
            assert language == "mermaid", f"a block of {language} is neither run nor written to a file"
    if session:
        run(["python", "-c", "\n".join(session)], tmp_path, environment)


def check_printed(body: str, printed: str, shell: Callable[[str], str]) -> None:
    """Check that a command printed these lines. Of a table, a page may leave out columns, rows and its last times."""
    timed = body.splitlines()[0].endswith("  search")
    for line in body.splitlines():
        if line.startswith("$ "):
            printed = shell(line.removeprefix("$ "))
            continue
        cells = _cells(line)[:-1] if timed else _cells(line)
        lines = map(_cells, printed.splitlines())
        assert any(_holds(each, cells) for each in lines), f"'{line}' is not in:\n{printed}"


def _cells(line: str) -> list[str]:
    return [] if set(line) <= {"─"} else re.split(r"\s{2,}", line.strip())


def _holds(line: list[str], cells: list[str]) -> bool:
    rest = iter(line)
    return all(cell in rest for cell in cells)


def check_commands(body: str) -> None:
    """Check commands without running them. Of a synopsis, take all optional parts and the first of alternatives."""
    for line in body.replace("\\\n", " ").splitlines():
        words = [re.sub(r"\|\S*$", "", word) for word in shlex.split(line, comments=True)]
        words = [re.sub(r"^[A-Z]$", "1", word.strip("[]")) for word in words if word.strip("[]") != "..."]
        while words and re.match(r"[A-Z_]+=", words[0]):  # An environment variable of the command.
            words.pop(0)
        if words:
            check_command(words)


def check_command(words: list[str]) -> None:
    match words:
        case ["make", *targets]:
            assert set(targets) <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        case ["sbatch", script, *rest]:
            batch = (ROOT / script).read_text().split("-m graphpipe")[1].splitlines()[0]
            check_verb(shlex.split(batch.replace('"$@"', shlex.join(rest))))
        case ["torchrun", *rest]:
            check_verb(rest[rest.index("graphpipe") + 1 :])
        case ["graphpipe", *rest]:
            check_verb(rest)
        case _:
            assert words == ["source", ".venv/bin/activate"], f"not a known command: {words}"


def check_verb(words: list[str]) -> None:
    _, rest = make_parser().parse_known_args(words)  # Raises SystemExit if the arguments are wrong.
    assert all("=" in word and word[0] != "-" for word in rest), f"{rest} in {words}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem in SLOW], ids=lambda page: page.stem)
def test_the_commands_of_a_slow_page_are_known(page: Path) -> None:
    for language, _, body in BLOCK.findall(page.read_text()):
        if language in ("bash", "text"):
            lines = body.replace("\\\n", " ")
            check_commands("\n".join(re.findall(r"^(?:graphpipe|make) [^|>&;\n]*$", lines, re.MULTILINE)))
        elif language == "python":
            check_names(body)


def check_names(body: str) -> None:
    """Check that Python code can be compiled, and that GraphPipe has what it imports and what it takes from `gp`."""
    for node in ast.walk(ast.parse(body)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "graphpipe":
            assert all(hasattr(import_module(node.module), each.name) for each in node.names), ast.unparse(node)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "gp":
            assert hasattr(graphpipe, node.attr), ast.unparse(node)


@pytest.mark.parametrize(
    "line",
    ["graphpipe plan", "graphpipe plna mmt", "make demo tset", "graphpipe report -o", "torchrun -m graphpipe train"],
)
def test_the_check_finds_mistakes_in_commands_that_are_not_run(line: str) -> None:
    with pytest.raises((AssertionError, SystemExit)):
        check_commands(line)


@pytest.mark.parametrize("line", ["gp.plam(graph)", "from graphpipe.errors import Infeasable", "gp.plan(("])
def test_the_check_finds_mistakes_in_code_that_is_not_run(line: str) -> None:
    with pytest.raises((AssertionError, SyntaxError)):
        check_names(line)


@pytest.mark.parametrize(
    ("body", "holds"),
    [
        ("a  c  search\n1  3  9 ms\n", True),
        ("a  c  search\n1  2  9 ms\n1  3  8 ms\n", True),
        ("c  a  search\n3  1  9 ms\n", False),
        ("a  d\n", False),
        ("$ other\nfour  five\n", True),
        ("$ other\na  b\n", False),
    ],
)
def test_the_check_finds_lines_that_are_not_printed(body: str, holds: bool) -> None:
    printed = "a  b  c  search\n──────\n1  2  3  5 ms\n"
    with nullcontext() if holds else pytest.raises(AssertionError):
        check_printed(body, printed, lambda _: "four  five\n")


def slurm_starts(folder: Path, *words: str) -> tuple[list[str], str]:
    """Return what the script starts on three nodes, and TORCH_DISABLE_SHARE_RDZV_TCP_STORE and OMP_NUM_THREADS."""
    for name, body in {
        "scontrol": "printf 'n1\\nn2\\nn3\\n'",
        "srun": 'echo "$TORCH_DISABLE_SHARE_RDZV_TCP_STORE $OMP_NUM_THREADS"; echo "$@"',
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    given = {"SLURM_NNODES": "3", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_ID": "77"}
    given |= {"SLURM_CPUS_PER_TASK": "32"}
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **given}
    script = ROOT / "examples" / "slurm" / "train.sbatch"
    command = ["bash", str(script), *words]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    own_store, started = output.splitlines()
    return started.split(), own_store


def test_the_slurm_script_starts_torchrun(tmp_path: Path) -> None:
    """srun has not inherited --cpus-per-task since Slurm 22.05, so an agent and its ranks shared one core."""
    meeting = "--rdzv-backend c10d --rdzv-id 77 --rdzv-endpoint n1:29500 -m graphpipe train t.toml"
    first = "torchrun --nnodes 3 --nproc-per-node 4 --max-restarts 0"
    assert slurm_starts(tmp_path, "t.toml") == (f"--cpus-per-task=32 {first} {meeting}".split(), "1 8")
    # The script used to refuse --elastic, because the ranks would have shared the agents' store.
    first = "--no-kill --kill-on-bad-exit=0 torchrun --nnodes 1:3 --nproc-per-node 4 --max-restarts 10"
    elastic = f"--cpus-per-task=32 {first} {meeting} --elastic"
    assert slurm_starts(tmp_path, "t.toml", "--elastic") == (elastic.split(), "1 8")
