"""The user's own Python modules: those that are loaded, and those that their source would load later."""

import ast
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from graphpipe.model.capture_cache.value_form import InDoubt

_INSTALLED = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_PACKAGE = Path(__file__).parents[2]
_DYNAMIC = {"exec", "eval", "compile", "__import__", "import_module", "exec_module", "globals", "getenv", "environ"}
"""Names with which source depends on more than itself and the modules that it imports."""


def user_modules() -> dict[str, ModuleType]:
    """Return the loaded modules whose files belong neither to Python, nor to an installed package, nor to graphpipe."""
    program = sys.modules.get("__main__")
    named = [(name, module) for name, module in sys.modules.items() if module is not program]
    return {name: module for name, module in named if _is_users(getattr(module, "__file__", None))}


def user_sources() -> dict[str, bytes]:
    """Return the content of the user's source files, by path: of loaded modules, and of those that they import.

    Raises:
        InDoubt: a file is not Python source, or may depend on something else.
    """
    sources: dict[str, bytes] = {}
    waiting = [Path(str(module.__file__)) for module in user_modules().values()]
    while waiting:
        path = waiting.pop()
        if str(path) not in sources:
            sources[str(path)] = content = _read(path)
            waiting += _imported(content, path)
    return sources


def package_version(name: str) -> str:
    """Return the version of the package that a loaded module belongs to; empty if it does not say one."""
    return str(getattr(sys.modules.get(name.partition(".")[0]), "__version__", ""))


def _is_users(file: str | None) -> bool:
    # The file of a task may be relative.
    return file is not None and _is_own(file if file.startswith(os.sep) else os.path.abspath(file))


@cache
def _is_own(file: str) -> bool:
    # It may be a link. Thousands of modules have a few hundred folders between them.
    path = os.path.realpath(file) if os.path.islink(file) else file
    return not _is_installed(os.path.dirname(path)) and os.path.isfile(path)


@cache
def _is_installed(folder: str) -> bool:
    path = Path(folder).resolve()
    return any(path.is_relative_to(known) for known in (*_INSTALLED, _PACKAGE))


def _read(path: Path) -> bytes:
    if path.suffix != ".py":
        raise InDoubt(f"{path} is not Python source")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InDoubt(f"{path} cannot be read") from error


def _imported(content: bytes, path: Path) -> Iterator[Path]:
    # The user's files that this source imports, perhaps only when a function runs.
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError) as error:
        raise InDoubt(f"{path} cannot be parsed") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and _spelled(node) in _DYNAMIC:
            raise InDoubt(f"{path} uses {_spelled(node)}")
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.ImportFrom):
            yield from _beside(path, node)
            continue
        else:
            continue
        yield from (Path(file) for name in names if (file := _file_of(name)) and _is_users(file))


def _spelled(node: ast.Name | ast.Attribute) -> str:
    # `model.eval()` and `re.compile()` are not the functions of these names.
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if node.attr not in ("eval", "exec", "compile") else ""


def _beside(path: Path, node: ast.ImportFrom) -> Iterator[Path]:
    folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
    for candidate in (
        folder.with_suffix(".py"),
        folder / "__init__.py",
        *(folder / f"{alias.name}.py" for alias in node.names),
    ):
        if candidate.is_file():
            yield candidate


def _file_of(name: str) -> str | None:
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    if "." in name and name.rpartition(".")[0] not in sys.modules:
        return None  # to look for it would import its package; the package's own name is looked for too
    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec.origin if spec and spec.has_location else None
