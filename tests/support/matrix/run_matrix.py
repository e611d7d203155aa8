"""Runs the tests in an environment for each row of `matrix_rows`: `make matrix`.

    make matrix                                  all rows, the whole tests: hours
    make matrix ROWS='3.12-2.11.0-pinned'        some rows
    make matrix ROWS='--again 3.12-2.11.0-pinned'  after a mend, the files of the tests that failed
    make matrix ROWS=--short                     the newest torch on the newest Python, a few tests

The results are saved after each row, beside those of rows that ran before, and stand in `docs/systems.md`.
"""

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from matrix_results import RowResult, read_junit, table, versions_of
from matrix_rows import INSTALL_SECONDS, ROOT, ROWS, MissingError, Row, make_environment, newest_python

RESULTS, PAGE = ROOT / "bench" / "results" / "matrix.json", ROOT / "docs" / "systems.md"
BEGIN, END = "<!-- rows of make matrix -->\n\n", "\n\n<!-- end of the rows -->"
SHORT = (
    "tests/test_package.py",
    "tests/doctor/test_check_ranks.py",
    "tests/launch/test_launcher.py",
    "tests/model/capture/test_capture.py",
    "tests/model/test_torch_private.py",
    "tests/run/stage/test_output_dtypes.py",
    "tests/run/step/test_evaluation.py",
    "tests/zoo_graphs",
)
"""Launch, capture, runtime, zoo and doctor: what a new torch has broken."""
SHORT_INSTALL_SECONDS = 150
"""Seconds that the packages of the short row may take: several GB."""


def main(words: list[str]) -> int:
    """Run rows; return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"names of rows (default: all): {', '.join(row.name for row in ROWS)}")
    parser.add_argument("--short", action="store_true", help="a row of the newest torch with a few tests, not saved")
    parser.add_argument("--again", action="store_true", help="of rows that ran, only the files of tests that failed")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "matrix", help="for the environments")
    parser.add_argument("--keep", action="store_true", help="keep the environments: 5 GB each")
    given = parser.parse_args(words)
    if given.short:
        return _short(given.folder)
    known = {row.name: row for row in ROWS}
    if unknown := [name for name in given.rows if name not in known]:
        parser.error(f"there is no row {unknown[0]}")
    run = run_again if given.again else run_row
    results = [_saved(run(known[name], given.folder, keep=given.keep)) for name in given.rows or known]
    print(table(results))
    return int(any(each.failed for each in results))


def _short(folder: Path) -> int:
    row = Row(python=newest_python(), torch="", versions="pinned")
    result = run_row(row, folder, SHORT, keep=False)
    print(table([result]))
    if result.missing:
        print(f"matrix: THE NEWEST TORCH WAS NOT TRIED: {result.missing}")
    return int(result.failed > 0)


def _saved(result: RowResult) -> RowResult:
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(known | {result.name: result.to_json()}, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + saved_table() + END + rest.partition(END)[2])
    return result


def saved_table() -> str:
    """Return the table of all rows that have run, in the order of `ROWS`."""
    known = json.loads(RESULTS.read_text())
    return table([RowResult(**known[row.name]) for row in ROWS if row.name in known])


def run_again(row: Row, folder: Path, *, keep: bool) -> RowResult:
    """Run the files of a saved row's failed tests once more, and return the row with what they say now."""
    before = RowResult(**json.loads(RESULTS.read_text())[row.name])
    if not before.failures:
        return before
    now = run_row(row, folder, before.failed_files, keep=keep)
    skipped = len({*before.failures} & {*now.left_out})
    mended = before.failed - now.failed - skipped
    known = [reason for reason, _ in before.reasons]
    return replace(
        before,
        date=now.date,
        missing=now.missing,
        passed=before.passed + mended,
        failed=now.failed,
        skipped=before.skipped + skipped,
        reasons=(*before.reasons, *(each for each in now.reasons if each[0] not in known)),
        failures=now.failures,
        mended=before.mended + mended,
    )


def run_row(row: Row, folder: Path, tests: tuple[str, ...] = (), *, keep: bool) -> RowResult:
    """Make the environment of a row, run the tests in it, and return what they said.

    Args:
        row: to run.
        folder: for the environments.
        tests: files and folders; empty for all.
        keep: whether the environment stays.
    """
    date = datetime.now(UTC).date().isoformat()
    own, junit = folder / row.name, folder / f"{row.name}.xml"
    junit.unlink(missing_ok=True)
    try:
        print(f"matrix: {row.name}: making its environment", flush=True)
        python = make_environment(row, own, SHORT_INSTALL_SECONDS if tests == SHORT else INSTALL_SECONDS)
        versions = json.loads(versions_of(python))
        workers = "2" if tests else "4"
        spread = ["--numprocesses", workers, "--dist", "loadfile", "--no-loadscope-reorder"]
        command = [str(python), "-m", "pytest", *spread, f"--junitxml={junit}", "--show-capture=no", *tests]
        print(f"matrix: {row.name}: {versions}", flush=True)
        subprocess.run(command, cwd=ROOT, check=False)
    except MissingError as error:
        return RowResult(name=row.name, date=date, missing=str(error))
    finally:
        if not keep:
            shutil.rmtree(own, ignore_errors=True)
    if not junit.exists():
        return RowResult(name=row.name, date=date, failed=1, failures=("pytest ended without a result",))
    return RowResult(
        name=row.name,
        date=date,
        python=versions["python"],
        torch=versions["torch"],
        tests=" ".join(tests) or "all",
        **read_junit(junit),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
