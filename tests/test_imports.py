"""The house's import rules: rooms and sub-rooms look only at those below them, and torch stays in its rooms."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import median

import pytest

import graphpipe

PACKAGE = Path(__file__).parent.parent / "graphpipe"
ROOMS = (
    *(
        "errors",
        "units",
        "versions",
        "user_frames",
        "host_memory",
        "collection_pause",
        "recursion_limit",
        "plugins",
        "torchrun",
        "waiting",
        "files",
    ),
    *("graph", "graph/splits", "cluster", "trace", "costs", "costs/ranks", "plans", "zoo_graphs", "balance"),
    *("schedule", "schedule/list_scheduling", "schedule/schedulers", "schedule/segments", "schedule/gradient_tasks"),
    "devices",
    *(
        "model/inputs",
        "model",
        "model/without_data",
        "model/hidden",
        "model/capture",
        "model/capture_file",
        "model/split",
        "model/lengths",
        "model/shards",
        "model/halves",
        "model/backends",
        "model/compiled",
        "model/capture_cache",
        "model/own_loss",
        "model/zoo",
    ),
    *("simulator/events", "simulator/lines", "simulator"),
    *(
        "planners/problem",
        "planners/relief",
        "planners/inference",
        "planners/baselines",
        "planners/swapping",
        "planners/improve",
        "planners/search",
        "planners/sharing",
        "planners",
    ),
    *("planners/lower_bound", "planning"),
    *(
        "profiler/fitting",
        "profiler/operators",
        "profiler/saved",
        "profiler",
        "profiler/placement",
        "profiler/learning",
        "importers",
        "exporters",
    ),
    *("run/device", "run/meeting", "run/comm", "run/faults", "run/tensor", "run/weights"),
    *("run/tensor_files", "run/initial_weights", "run/versions"),
    *("run/stage", "run/worker", "run/step", "run/segments", "run/rounds", "run"),
    *("run/checkpoint", "run/sources", "run/export", "run/rehearse", "run/inference"),
    *("equivalence/steps", "equivalence"),
    *("rehearsal", "launch", "link_profile"),  # rehearsal joins rooms
    *("training/config", "training/task", "training/run_folder", "training/telemetry", "training/elastic"),
    *("training/loop", "training", "training/tune"),
    *("inference", "document_schemas", "doctor"),
    *("integrations", "integrations/transformers", "integrations/lightning"),
    *("report/content", "report/tables", "report/figures", "report/page", "report"),
    *("cli", "__main__"),
)
"""From the lowest up. The files of a room itself stand where the room is named."""
TORCH_ROOMS = (
    "devices",
    "model",
    "profiler",
    "run",
    "equivalence",
    "launch",
    "link_profile",
    "training",
    "inference",
    "doctor",
    "integrations",
    "cli",
)
"""Where torch may be imported: what stands above `devices`, apart from the simulator and the planners."""
PUBLIC = "graphpipe"
"""The public names: may come from every room, and no room imports them from there."""


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def tree_of(name: str) -> ast.Module:
    """Return a parsed module. Not at import: every worker collects every file."""
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@cache
def imported(name: str) -> set[str]:
    """Return what a module imports anywhere: at its top, inside functions, and for type checkers only."""
    found: set[str] = set()
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}, line {node.lineno}: write imports in full"
            assert node.module is not None
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {module if module in MODULES else node.module for module in inner}
    return found


def room(module: str) -> str:
    """Return the room or sub-room that a module is in."""
    parts = module.split(".")[1:]
    if MODULES[module].name != "__init__.py":
        parts = parts[:-1] or parts
    return "/".join(parts[:2])


def check_imports(name: str) -> None:
    """Check that a module imports only what is in rooms below its own."""
    assert room(name) in ROOMS, f"{name} is in no room of the layout"
    for other in imported(name):
        if other.split(".")[0] == "graphpipe":
            assert other != PUBLIC, f"{name} imports the public names"
            if MODULES[name].name == "__init__.py" and room(other).startswith(room(name)):
                continue  # a room shows what its sub-rooms offer
            assert ROOMS.index(room(other)) <= ROOMS.index(room(name)), f"{name} imports {other}"
            assert {room(name).split("/")[0], room(other).split("/")[0]} != {"simulator", "run"}, f"{name}: {other}"


def test_a_room_imports_only_rooms_below_it() -> None:
    for name in MODULES:
        if name != PUBLIC:
            check_imports(name)


def test_torch_stays_in_its_rooms() -> None:
    with_torch = {name for name in MODULES if "torch" in {other.split(".")[0] for other in imported(name)}}
    assert {name for name in with_torch if room(name).split("/")[0] not in TORCH_ROOMS} == set()


def test_contributing_lists_the_rooms_that_there_are() -> None:
    """`link_profile` was missing in both lists."""
    page = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.search(r"only the rooms before it in this list:\n\n((?: {4}.*\n)+)", page)
    assert listed
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert listed[1].replace(",", " ").split() == [name for name in ROOMS if name in folders]
    torch_rooms = re.search(r"Torch is imported only in (.*?)\. ", page, re.DOTALL)
    assert torch_rooms
    assert tuple(re.findall(r"`(\w+)`", torch_rooms[1])) == TORCH_ROOMS
    for room, text in re.findall(r"`(\w+)` has (`.*?), for example\.", page, re.DOTALL):
        named = [f"{room}/{name}" for name in re.findall(r"`(\w+)`", text)]
        assert named == [name for name in ROOMS if name in named]


def test_no_import_cycles_lazy_ones_included() -> None:
    TopologicalSorter({name: imported(name) & MODULES.keys() - {name, PUBLIC} for name in MODULES}).prepare()


def test_the_scan_sees_lazy_imports() -> None:
    assert "graphpipe.model.split.whole_backwards" in imported("graphpipe.planning.backwards")
    assert "graphpipe.errors" in imported("graphpipe.units")


def test_every_module_can_be_imported_by_its_dotted_name() -> None:
    names = [found.name for found in pkgutil.walk_packages(graphpipe.__path__, "graphpipe.")]
    assert "graphpipe.plans.plan" in names
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
            found: dict[str, object] = {}
            exec(f"import {name} as found", found)  # fails where a room's function hides the module
            assert getattr(found["found"], "__name__", "") == name


@pytest.mark.parametrize("tree", ["graphpipe", "bench", "tests"])
def test_a_folder_holds_at_most_14_files(tree: str) -> None:
    paths = [path for path in (PACKAGE.parent / tree).rglob("*.py") if path.name not in ("__init__.py", "conftest.py")]
    counts = Counter(path.parent for path in paths)
    crowded = {str(folder): count for folder, count in counts.items() if count > 14 and folder.name != "cli"}
    assert not crowded  # a verb has a file of its own, so `cli` has more


def test_files_and_functions_stay_small() -> None:
    files = [len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES.values()]
    assert median(files) <= 130
    assert max(files) <= 350
    trees = [tree_of(name) for name in MODULES]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert median((node.end_lineno or 0) - node.lineno + 1 for node in functions) <= 10


def test_no_two_public_classes_have_one_name() -> None:
    trees = [tree_of(name) for name in MODULES]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []


def test_a_rank_starts_without_what_few_ranks_need() -> None:
    # These took every rank more than a second to import, on one core.
    heavy = ("sympy", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.tensor")
    code = f"import sys, graphpipe.launch.rank_main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
