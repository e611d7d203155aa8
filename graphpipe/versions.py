"""Versions of Python and of installed packages."""

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, version

PACKAGE = "graphpipe-torch"


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


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
