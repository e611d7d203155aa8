"""`make matrix` runs each row in its own environment, counts what the tests said, and names what is missing."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import matrix_rows
import pytest
import run_matrix
from matrix_results import RowResult, read_junit, table
from matrix_rows import ROOT, ROWS, MissingError, Row, find_python, make_environment, newest_python

XML = """<testsuites><testsuite time="75.5">
<testcase classname="tests.a" name="passes"/><testcase classname="tests.a" name="also"/>
<testcase classname="tests.a" name="fails"><failure message="no">text</failure></testcase>
<testcase classname="" name="tests.b"><error message="cannot be read"/></testcase>
<testcase classname="tests.a" name="gpu"><skipped message="no GPU"/></testcase>
<testcase classname="tests.a" name="gpus"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_the_counts_are_those_of_the_tests(tmp_path: Path) -> None:
    (tmp_path / "row.xml").write_text(XML)
    found = RowResult(
        name="row", date="2026-11-25", python="3.13.0", torch="2.13.0+cu130", **read_junit(tmp_path / "row.xml")
    )
    assert (found.passed, found.failed, found.skipped) == (2, 2, 2)
    assert found.failures == ("tests.a::fails", "::tests.b")
    assert found.failed_files == ("tests/a.py", "tests/b.py")
    assert found.reasons == (("no GPU", 2),)
    missing = RowResult(name="other", date="2026-11-25", missing="this machine has no Python 3.14")
    assert table([found, missing]).splitlines()[2:] == [
        "| row | 3.13.0 | 2.13.0+cu130 | 2 |  | 2 | 2 | 1 | 2026-11-25 |",
        "| other | missing: this machine has no Python 3.14 | | | | | | | 2026-11-25 |",
        "",
        "Skipped in row: 2 x no GPU.",
    ]


def test_the_page_shows_the_rows_that_have_run() -> None:
    assert run_matrix.BEGIN + run_matrix.saved_table() + run_matrix.END in run_matrix.PAGE.read_text()


def test_a_python_that_does_not_start_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    (tmp_path / f"python{OWN}").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert find_python(OWN).exists()
    assert newest_python(("3.99", OWN)) == OWN
    with pytest.raises(MissingError, match=r"this machine has no Python 3\.99"):
        make_environment(Row(python="3.99", torch="", versions="newest"), tmp_path / "made")
    with pytest.raises(MissingError, match=r"has no Python 3\.99 to 3\.99"):
        newest_python(("3.99",))


def test_a_wheel_that_cannot_be_had_is_said_clearly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def offline(*_: object) -> Path:
        raise MissingError("uv, which installs, cannot be had: no network")

    monkeypatch.setattr(run_matrix, "make_environment", offline)
    assert run_matrix.main(["--short", "--folder", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "matrix: THE NEWEST TORCH WAS NOT TRIED: uv, which installs, cannot be had: no network"


@pytest.fixture
def row_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RowResult]:
    """Return a function that runs the first row with tests that fail or pass, and returns what is saved."""
    results, page = tmp_path / "matrix.json", tmp_path / "systems.md"
    results.write_text(json.dumps({"kept": {"passed": 7}}))
    page.write_text(f"Rows:\n\n{run_matrix.BEGIN}| old |{run_matrix.END}\n")

    def run(*options: str, fails: bool) -> RowResult:
        def tested(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
            junit = next(word.partition("=")[2] for word in command if word.startswith("--junitxml="))
            passing = XML.replace("failure", "system-out").replace("error", "system-out")
            Path(junit).write_text(XML if fails else passing)
            return subprocess.CompletedProcess(command, int(fails))

        monkeypatch.setattr(run_matrix.subprocess, "run", tested)
        assert run_matrix.main([ROWS[0].name, *options, "--folder", str(tmp_path)]) == fails
        saved = json.loads(results.read_text())
        assert saved["kept"] == {"passed": 7}
        assert "old" not in page.read_text()
        assert f"| {ROWS[0].name} | 3.11.7 | 2.13.0 | " in page.read_text()
        return RowResult(**saved[ROWS[0].name])

    monkeypatch.setattr(run_matrix, "make_environment", lambda *_: Path(sys.executable))
    monkeypatch.setattr(run_matrix, "RESULTS", results)
    monkeypatch.setattr(run_matrix, "PAGE", page)
    monkeypatch.setattr(run_matrix, "versions_of", lambda _: '{"python": "3.11.7", "torch": "2.13.0"}')
    return run


@pytest.mark.parametrize("fails", [False, True])
def test_a_failing_test_fails_the_row(fails: bool, row_of: Callable[..., RowResult]) -> None:
    row = row_of(fails=fails)
    assert (row.failed, row.tests) == (2 * fails, "all")


def test_failed_tests_are_run_again_after_a_mend(row_of: Callable[..., RowResult]) -> None:
    row_of(fails=True)
    row = row_of("--again", fails=False)
    assert (row.passed, row.failed, row.mended, [*row.failures]) == (4, 0, 2, [])
    assert row_of("--again", fails=False) == row


def test_rows_leave_out_the_pinned_torch_only(tmp_path: Path) -> None:
    assert matrix_rows._chosen("pinned", tmp_path) == ["-c", str(tmp_path / "constraints.txt")]
    pinned, kept = ((folder / "constraints.txt").read_text().splitlines() for folder in (ROOT, tmp_path))
    assert [line for line in pinned if line not in kept] == [line for line in pinned if line.startswith("torch==")]
    assert matrix_rows._chosen("lowest", tmp_path) == ["--resolution", "lowest-direct"]


def test_the_short_row_names_tests_that_exist() -> None:
    assert all((ROOT / path).exists() for path in run_matrix.SHORT)


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_matrix.main(["3.11-9.9-pinned"])
    assert "there is no row 3.11-9.9-pinned" in capsys.readouterr().err
