"""`make` takes the Python that it finds, and says in a sentence what stands in the way of an environment."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("sh", "touch", "env")
"""Beside Python, what the recipes call."""
WITHOUT_ENSUREPIP = "lambda name: None if name == 'ensurepip' else known(name)"
MADE_BY = ROOT / "tests" / "support" / "make_environment.py"
MAKE = shutil.which("make")
pytestmark = pytest.mark.skipif(MAKE is None, reason="make is not installed")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of what makes an environment, with a folder `bin` of tools."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tests/support/make_environment.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for name in TOOLS:
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    return tmp_path


def make(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run make with only the tools of the project's folder `bin` on the path."""
    assert MAKE
    return subprocess.run(
        [MAKE, *words], cwd=project, env={"PATH": str(project / "bin")}, capture_output=True, text=True, timeout=60
    )


def script(project: Path, name: str, body: str) -> None:
    """Put a program on the path."""
    path = project / "bin" / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def install(project: Path, code: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Make an environment in the project's folder, after some code has run in the same process."""
    run = f"import runpy, sys; sys.argv[1:] = {[*words]}; runpy.run_path({str(MADE_BY)!r}, run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", f"{code}\n{run}"],
        env={"PATH": str(project / "bin")} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_commands_of_the_readme_start_without_the_name_python3_11(project: Path) -> None:
    # On Ubuntu 24.04, Debian 13 and Fedora, both ended at once: "make: python3.11: No such file or directory".
    (project / "bin" / "python3").symlink_to(sys.executable)
    done = make(project, "-n", "demo", "test")
    assert done.returncode == 0, done.stderr
    assert "python3 tests/support/make_environment.py report" in done.stdout
    assert ".venv/bin/graphpipe demo" in done.stdout
    assert ".venv/bin/pytest" in done.stdout


def test_the_newest_python_that_starts_is_taken(project: Path) -> None:
    script(project, "python3.14", "echo 'pyenv: python3.14: command not found' >&2; exit 127")
    for name in ("python3.13", "python3.11", "python3"):
        (project / "bin" / name).symlink_to(sys.executable)
    assert make(project, "-n", "demo").stdout.startswith("python3.13 tests/support")
    assert make(project, "-n", "demo", "PYTHON=/a/python3").stdout.startswith("/a/python3 tests/support")


def test_without_a_supported_python_a_sentence_says_what_to_install(project: Path) -> None:
    script(project, "python3", "exit 1")  # one that is too old answers the question in this way
    done = make(project, "-n", "test")
    assert done.returncode == 2
    assert "GraphPipe needs Python 3.11 to 3.14, and the path has none of them: install it" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert make(project, "-n", "clean").returncode == 0  # needs none


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import sys; sys.version_info = (3, 9, 2)", " is Python 3.9, and GraphPipe needs 3.11 to 3.14."),
        (
            f"import importlib.util as u; known = u.find_spec; u.find_spec = {WITHOUT_ENSUREPIP}",
            " lacks ensurepip, which makes environments: on Debian and Ubuntu, apt install python3.",
        ),
    ],
)
def test_what_python_lacks_is_a_sentence(project: Path, code: str, sentence: str) -> None:
    done = install(project, code, "dev")
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def with_pip(project: Path, answers: str) -> subprocess.CompletedProcess[str]:
    """Add to an environment whose Python answers as pip, in shell."""
    own = project / "made" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text(f"#!/bin/sh\n{answers}\n")
    own.chmod(0o755)
    return install(project, f"import sys; sys.prefix = {str(project / 'made')!r}", "dev", "--folder", f"{project}/made")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError(...)'",
            "the package index cannot be reached: connect to the network, or set the proxy or mirror of pip or uv",
        ),
        ("OSError: [Errno 28] No space left on device", "the disk is full: torch and its CUDA libraries need 8 GB"),
        (
            "ERROR: No matching distribution found for torch==2.13.0",
            "the index has no build of a package for this Python and system",
        ),
        ("ERROR: something else", "ended with code 1, as it says above"),
    ],
)
def test_what_pip_could_not_do_is_a_sentence_at_the_end(project: Path, said: str, sentence: str) -> None:
    done = with_pip(project, f'case "$*" in *--version) echo \'pip 25.1\';; *) echo "{said}" >&2; exit 1;; esac')
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("make: ")
    assert sentence in last
    assert said in done.stderr


def test_an_old_pip_is_a_sentence(project: Path) -> None:
    done = with_pip(project, "echo 'pip 20.0.2 from /somewhere (python 3.11)'")
    assert done.returncode == 1
    own = project / "made" / "bin" / "python"
    assert done.stderr == f"make: pip 20.0 is too old: {own} -m pip install --upgrade pip.\n"


def test_an_environment_of_another_python_is_made_anew(project: Path) -> None:
    made = project / "made"
    made.mkdir()
    (made / "pyvenv.cfg").write_text("version = 3.10.1\n")
    (made / "stale").touch()
    code = "import subprocess; subprocess.run = lambda *a, **k: subprocess.CompletedProcess(a, 0, 'pip 25.1', '')"
    done = install(project, code, "dev", "--folder", str(made))
    assert done.returncode == 0, done.stderr
    assert not (made / "stale").exists()
