"""The rows of the matrix: which Python, which torch, which versions of the other packages, and their environments."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[3]
INSTALL_SECONDS = 900
Versions = Literal["pinned", "lowest", "newest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One environment in which the tests run."""

    python: str
    """The version of Python: 3.11."""
    torch: str
    """The version of torch, in the build that pip takes; empty for the newest."""
    versions: Versions
    """Those of the other packages: of constraints.txt, the lowest that pyproject.toml allows, or the newest."""

    @property
    def name(self) -> str:
        """The name by which a row is asked for."""
        return f"{self.python}-{self.torch or 'newest'}-{self.versions}"


ROWS = (
    Row(python="3.11", torch="2.13.0", versions="pinned"),
    Row(python="3.13", torch="2.13.0", versions="pinned"),
    Row(python="3.12", torch="2.11.0", versions="pinned"),
    Row(python="3.12", torch="2.12.0", versions="pinned"),
    Row(python="3.11", torch="2.14.1", versions="pinned"),
    Row(python="3.11", torch="2.13.0", versions="lowest"),
    Row(python="3.13", torch="", versions="newest"),
    Row(python="3.14", torch="", versions="newest"),
)


class MissingError(Exception):
    """A row cannot run here. The text says what this machine lacks."""


def find_python(version: str) -> Path:
    """Return a Python of this version, from the path or from pyenv.

    Raises:
        MissingError: there is none that starts.
    """
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(root.glob(f"{version}.*/bin/python"), reverse=True)]
    for path in filter(None, candidates):
        code = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"
        done = subprocess.run([str(path), "-c", code], capture_output=True, text=True, check=False)
        found, _, executable = done.stdout.strip().partition(" ")
        if done.returncode == 0 and found == version:
            return Path(executable)
    raise MissingError(f"this machine has no Python {version}")


def newest_python(versions: tuple[str, ...] = ("3.14", "3.13", "3.12", "3.11")) -> str:
    """Return the version of the newest Python of this machine.

    Raises:
        MissingError: there is none of these.
    """
    for version in versions:
        try:
            find_python(version)
        except MissingError:
            continue
        return version
    raise MissingError(f"this machine has no Python {versions[-1]} to {versions[0]}")


def make_environment(row: Row, folder: Path, seconds: float = INSTALL_SECONDS) -> Path:
    """Make the environment of a row in a folder, and return its Python.

    Args:
        row: to make.
        folder: for the environment.
        seconds: that the packages may take.

    Raises:
        MissingError: this machine lacks the Python, or the packages cannot be had.
    """
    venv = [str(find_python(row.python)), "-m", "venv", "--clear", str(folder)]
    _run(venv, "the environment cannot be made", seconds)
    own = folder / "bin" / "python"
    _run([str(own), "-m", "pip", "install", "--quiet", "uv"], "uv, which installs, cannot be had", seconds)
    install = [str(own), "-m", "uv", "pip", "install", "--quiet", "--python", str(own), *_indexes(own)]
    packages = [f"torch=={row.torch}" if row.torch else "torch", "--editable", f"{ROOT}[dev]"]
    problem = f"torch {row.torch or ''} or a package cannot be had"
    _run([*install, *_chosen(row.versions, folder), *packages], problem, seconds)
    return own


def _indexes(own: Path) -> list[str]:
    # uv does not read the settings of pip: an index on the disk, a mirror, and the newest versions that they may give.
    done = subprocess.run([str(own), "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    settings = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    words: list[str] = []
    for name, option in (("index-url", "--default-index"), ("extra-index-url", "--index"), ("constraint", "-c")):
        for key, value in settings.items():
            if key.endswith(f".{name}"):
                words += [word for each in value.strip("'").replace("\\n", " ").split() for word in (option, each)]
    return [*words, "--index-strategy", "unsafe-best-match"]


def _chosen(versions: Versions, folder: Path) -> list[str]:
    if versions == "lowest":
        return ["--resolution", "lowest-direct"]
    if versions == "newest":
        return ["--upgrade"]
    pinned = folder / "constraints.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    pinned.write_text("".join(line for line in lines if not line.startswith("torch==")))
    return ["-c", str(pinned)]


def _run(command: list[str], problem: str, seconds: float) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise MissingError(f"{problem} within {seconds:g} s") from None
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise MissingError(f"{problem}: {' '.join(said[-3:]) or f'code {done.returncode}'}")
