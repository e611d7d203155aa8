"""Versions of Python and of installed packages."""

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

PACKAGE = "graphpipe-torch"


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of installed packages; "not installed" if a package is missing."""
    return {"python": platform.python_version()} | {package: _version(package) for package in packages}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
