"""The house's import rules: rooms look only at rooms above them, and torch stays in its rooms."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "graphpipe"
ROOMS = (
    *("errors", "places", "units", "versions", "garbage", "documents", "toml_text"),
    *("graph", "costs", "plan", "schedule", "trace"),
    *("simulate", "doctor", "model", "run", "report"),
    *("api", "cli", "__main__"),  # api: the public functions that wire rooms together
)
PUBLIC = "graphpipe"
"""The public names: may come from every room, and no room imports them from there."""


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(name: str, *, lazy: bool) -> set[str]:
    """Return the modules that a module imports at its top level, or, with `lazy`, anywhere."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree) if lazy else eager(tree.body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}, line {node.lineno}: write imports in full"
            assert node.module is not None
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {module if module in MODULES else node.module for module in inner}
    return found


def eager(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements that run on import, those inside `if` and `try` too, `if TYPE_CHECKING` apart."""
    found: list[ast.stmt] = []
    for node in body:
        found.append(node)
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            for field in ("body", "orelse", "finalbody"):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    found += eager(getattr(node, field, []))
    return found


def room(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("name", [name for name in MODULES if name != PUBLIC])
def test_a_room_imports_only_rooms_above_it(name: str) -> None:
    assert room(name) in ROOMS, f"{name} is in no room of the design"
    for other in imported(name, lazy=True):
        if other.split(".")[0] == "graphpipe":
            assert other != PUBLIC, f"{name} imports the public names"
            assert ROOMS.index(room(other)) <= ROOMS.index(room(name)), f"{name} imports {other}"
            assert {room(name), room(other)} != {"simulate", "run"}, f"{name} imports {other}"


@pytest.mark.parametrize("name", MODULES)
def test_torch_stays_in_its_rooms(name: str) -> None:
    roots = {other.split(".")[0] for other in imported(name, lazy=True)}
    if "torch" in roots:
        assert name.startswith(("graphpipe.model", "graphpipe.run")) or name == "graphpipe.profiler.profile_ops"


def test_no_import_cycles() -> None:
    graph = {name: {other for other in imported(name, lazy=False) if other in MODULES} for name in MODULES}
    TopologicalSorter(graph).prepare()


def test_the_scan_tells_eager_imports_from_lazy_ones() -> None:
    assert "graphpipe.errors" in imported("graphpipe.units", lazy=False)
    assert "graphpipe.cluster.presets" in imported("graphpipe.cluster.cluster", lazy=True)
    assert "graphpipe.cluster.presets" not in imported("graphpipe.cluster.cluster", lazy=False)


def test_a_rank_starts_without_what_few_ranks_need() -> None:
    # These took every rank more than a second to import, on one core.
    heavy = ("sympy", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.tensor")
    code = f"import sys, graphpipe.launch.rank_main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
