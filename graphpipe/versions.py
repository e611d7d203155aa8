"""Versions of Python and of installed packages, and what must be there to import this one."""

import platform
import re
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "graphpipe-torch"
OLDEST_TORCH = (2, 11)
_MISSING = "not installed"


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of installed packages; "not installed" if a package is missing."""
    return {"python": platform.python_version()} | {package: _version(package) for package in packages}


def version_line() -> str:
    """Return one line for `--version`: this package, and what its results depend on."""
    found = versions([PACKAGE, "torch"])
    return f"graphpipe {found[PACKAGE]} (torch {found['torch']}, python {found['python']})"


def owners(name: str) -> list[str]:
    """Return the installed distributions that bring a top-level package of this name."""
    return sorted(set(packages_distributions().get(name, [])))


def check_requirements() -> None:
    """Check the system and the version of torch. Planning needs no torch, so it may be missing.

    Raises:
        ImportError: in a program.
        SystemExit: in the command `graphpipe`, which prints a sentence without a traceback.
    """
    if not (unmet := unmet_requirement()):
        return
    if sys.argv and (sys.argv[0] == "-m" or Path(sys.argv[0]).stem == "graphpipe"):
        raise SystemExit(f"graphpipe: error: {unmet}")
    raise ImportError(unmet)


def unmet_requirement() -> str:
    """Return a sentence about what is missing; empty if nothing is."""
    if missing := [name for name in ("fcntl", "resource") if find_spec(name) is None]:
        return (
            f"graphpipe runs on Linux and macOS, and this Python for {sys.platform} has no module {missing[0]}: "
            "on Windows, use the Windows Subsystem for Linux (WSL)."
        )
    torch = _version("torch")
    if torch != _MISSING and torch_is_too_old(torch):
        oldest = ".".join(map(str, OLDEST_TORCH))
        return f"graphpipe needs torch {oldest} or newer, and {torch} is installed: pip install 'torch>={oldest}'."
    return ""


def torch_is_too_old(torch: str) -> bool:
    """Return whether a version of torch, as "2.13.0+cpu", is older than the oldest that is supported."""
    return tuple(int(number) for number in re.findall(r"\d+", torch)[:2]) < OLDEST_TORCH


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return _MISSING
