"""What the tests of a row said, read from pytest's XML, and the table of all rows."""

import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

_VERSIONS = """
import json, platform, sys
from importlib.metadata import version
import torch
packages = ("numpy", "scipy", "rich", "transformers", "pytest")
print(json.dumps({"python": platform.python_version(), "torch": torch.__version__} | {p: version(p) for p in packages}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """A row that has run, or that is missing."""

    name: str
    date: str
    missing: str = ""
    """Why the row did not run; empty if it did."""
    python: str = ""
    torch: str = ""
    tests: str = ""
    """`all`, or the folders and files that were run."""
    passed: int = 0
    failed: int = 0
    """Tests that failed, and files that could not be read."""
    mended: int = 0
    """Tests of `passed` that failed when the row ran, and passed after a mend."""
    skipped: int = 0
    seconds: float = 0.0
    failures: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Tests that were skipped."""
    reasons: tuple[tuple[str, int], ...] = ()
    """Why tests were skipped, with the number of tests."""

    @property
    def failed_files(self) -> tuple[str, ...]:
        """The files of the tests that failed."""
        modules = dict.fromkeys(each.rpartition("::")[0] or each.strip(":") for each in self.failures)
        return tuple(f"{module.replace('.', '/')}.py" for module in modules)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return asdict(self)


def read_junit(path: Path) -> dict[str, Any]:
    """Return the counts, failures and reasons of a run of pytest, as fields of `RowResult`."""
    failures: list[str] = []
    left_out: list[str] = []
    reasons: Counter[str] = Counter()
    cases, seconds = 0, 0.0
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        seconds += float(suite.get("time", 0.0))
        for case in suite.iter("testcase"):
            cases += 1
            name = f"{case.get('classname')}::{case.get('name')}"
            skipped = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                failures.append(name)
            elif skipped is not None:
                left_out.append(name)
                reasons[skipped.get("message", "")] += 1
    return {
        "passed": cases - len(failures) - reasons.total(),
        "failed": len(failures),
        "skipped": reasons.total(),
        "seconds": round(seconds, 1),
        "failures": tuple(failures),
        "left_out": tuple(left_out),
        "reasons": tuple(reasons.most_common()),
    }


def versions_of(python: Path) -> str:
    """Return the versions of an environment as JSON."""
    return subprocess.run([str(python), "-c", _VERSIONS], capture_output=True, text=True, check=True).stdout.strip()


def table(results: Sequence[RowResult]) -> str:
    """Return the rows as a table in Markdown, with the reasons of skipped tests below it."""
    lines = ["| row | Python | torch | passed | of these after a mend | failed | skipped | minutes | date |"]
    lines.append("|" + " --- |" * 9)
    for each in results:
        if each.missing:
            lines.append(f"| {each.name} | missing: {each.missing} | | | | | | | {each.date} |")
        else:
            passed = f"{each.passed:,} | {each.mended or ''}"
            counts = f"{passed} | {each.failed} | {each.skipped} | {each.seconds / 60:.0f}"
            lines.append(f"| {each.name} | {each.python} | {each.torch} | {counts} | {each.date} |")
    return "\n".join([*lines, *_reasons(results)])


def _reasons(results: Sequence[RowResult]) -> list[str]:
    # Rows that skip the same tests share a line.
    rows: dict[str, list[str]] = {}
    for each in results:
        if each.reasons:
            rows.setdefault("; ".join(f"{count} x {reason}" for reason, count in each.reasons), []).append(each.name)
    return ["", *(f"Skipped in {', '.join(names)}: {reasons}." for reasons, names in rows.items())] if rows else []
