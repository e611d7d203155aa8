"""`graphpipe init` writes a project that trains, and whose tests pass."""

import subprocess
from pathlib import Path

import pytest
from cli_cases import Run
from forked_programs import forked_programs

PROJECT = Path(__file__).parents[2] / "examples" / "project"


def test_a_project_is_written_and_nothing_is_overwritten(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("init", "own")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        "own: task.py, train.toml, test_task.py",
        "train it:  graphpipe train own/train.toml",
        "test it:   python -m pytest own",
        "then put your own model, data and loss into own/task.py",
    ]
    assert {path.name for path in Path("own").iterdir()} == {"task.py", "train.toml", "test_task.py"}
    Path("own/task.py").write_text("mine")
    ran = run("init", "own")
    assert ran.code == 2
    assert ran.err == "graphpipe: error: own: exists already. Name another folder: nothing is overwritten.\n"
    assert Path("own/task.py").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = run("init", tmp_path / "file" / "own")
    assert ran.code == 2
    assert "cannot be written: Not a directory. Name a folder that can be written." in ran.err


def test_the_tests_of_the_project_pass() -> None:
    done = subprocess.run(
        [
            forked_programs() / "python",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--noconftest",
            "-c",
            "/dev/null",
            ".",
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
