"""Makes `.venv` from the pinned versions in constraints.txt, or adds packages to it: `make demo`, `make test`.

It runs on the Python that was found, which may lack what it needs, so it starts on old versions and imports only the
standard library. What stands in the way is said in one sentence.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
OLDEST, NEWEST = (3, 11), (3, 14)
OLDEST_PIP = (22, 3)
"""That of Python 3.11. It knows the names of torch's wheels, and installs a project in place from pyproject.toml."""
NETWORK = re.compile(
    r"NewConnectionError|Failed to establish|name resolution|dns error|error sending request|ConnectTimeout"
    r"|Connection refused|Network is unreachable|client error \(Connect\)|ProxyError|ReadTimeout|timed out",
)


def main(words: list[str]) -> None:
    """Make the environment, and install the project with an extra into it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("extra", help="of pyproject.toml")
    parser.add_argument("--torch-index", default="", help="an index that torch is taken from")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv")
    given = parser.parse_args(words)
    check_python()
    own = given.folder / "bin" / "python"
    if Path(sys.prefix).resolve() != given.folder.resolve():
        make_folder(given.folder)
    install = installer(own)
    torch = pinned_torch()
    index = ["--index-url", given.torch_index] if given.torch_index else []
    if index or not has_torch(own, torch):
        print(
            f"installing torch {torch}" + (f" from {given.torch_index}" if index else weight_of_torch()),
            flush=True,
        )
        run([*install, *index, f"torch=={torch}"])
    run([*install, "--editable", f"{ROOT}[{given.extra}]"])


def check_python() -> None:
    """End with a sentence if this Python is too old, too new, or lacks what makes environments."""
    number = sys.version_info[:2]
    if not OLDEST <= number <= NEWEST:
        oldest, newest = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
        stop(f"{sys.executable} is Python {number[0]}.{number[1]}, and GraphPipe needs {oldest} to {newest}")
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing and shutil.which("uv") is None:
        stop(
            f"{sys.executable} lacks {' and '.join(missing)}, which makes environments: on Debian and Ubuntu, "
            f"apt install python{number[0]}.{number[1]}-venv, and elsewhere install uv"
        )


def make_folder(folder: Path) -> None:
    """Make an environment. One of another version of Python is replaced."""
    settings = folder / "pyvenv.cfg"
    version = ".".join(map(str, sys.version_info[:3]))
    same = settings.exists() and re.search(rf"^version\w* = {re.escape(version)}$", settings.read_text(), re.MULTILINE)
    if folder.exists() and not same:
        shutil.rmtree(folder)
    if importlib.util.find_spec("ensurepip"):
        run([sys.executable, "-m", "venv", str(folder)])
    else:
        run(["uv", "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)])


def installer(own: Path) -> list[str]:
    """Return the command that installs into an environment. uv takes a third of pip's time."""
    pinned = ["--quiet", "--constraint", str(ROOT / "constraints.txt")]
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", str(own), *pinned]
    done = subprocess.run([str(own), "-m", "pip", "--version"], capture_output=True, text=True, check=False)
    found = re.match(r"pip (\d+)\.(\d+)", done.stdout)
    if found is None:
        stop(f"{own.parent.parent} has no pip: remove the folder, and make again")
    if (int(found[1]), int(found[2])) < OLDEST_PIP:
        stop(f"pip {found[1]}.{found[2]} is too old: {own} -m pip install --upgrade pip")
    return [str(own), "-m", "pip", "install", "--disable-pip-version-check", *pinned]


def pinned_torch() -> str:
    """Return the version of torch that constraints.txt names."""
    found = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found
    return found[1]


def has_torch(own: Path, version: str) -> bool:
    """Return whether an environment has this version of torch, in any build."""
    code = "from importlib.metadata import version; print(version('torch'))"
    done = subprocess.run([str(own), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip().partition("+")[0] == version


def weight_of_torch() -> str:
    """Return what torch weighs where its default build brings CUDA."""
    if sys.platform != "linux":
        return ""
    return " (its default build for Linux brings CUDA and weighs 2.7 GB; TORCH_INDEX names an index of smaller ones)"


def run(command: list[str]) -> None:
    """Run a command that installs, and end with a sentence if it fails."""
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return
    sys.stderr.write(done.stderr)
    if NETWORK.search(done.stderr):
        stop("the package index cannot be reached: connect to the network, or set the proxy or mirror of pip or uv")
    if "No space left" in done.stderr:
        stop("the disk is full: torch and its CUDA libraries need 8 GB; TORCH_INDEX names an index of smaller builds")
    if "No matching distribution" in done.stderr or "No solution found" in done.stderr:
        stop("the index has no build of a package for this Python and system: the README says which are supported")
    if "ensurepip" in done.stderr:
        stop(f"{sys.executable} cannot make environments: on Debian and Ubuntu, apt install python3-venv")
    stop(f"{' '.join(command[:4])} ... ended with code {done.returncode}, as it says above")


def stop(sentence: str) -> NoReturn:
    """End with a sentence."""
    raise SystemExit(f"make: {sentence}.")


if __name__ == "__main__":
    main(sys.argv[1:])
